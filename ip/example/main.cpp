// The CPU of the example SoC: runs the driver on the Verilated model.
//
// Without an argument it runs a smoke test. With +script=FILE it executes the file's lines. Numbers are decimal, or
// hexadecimal after 0x; bytes are hexadecimal:
//   limit CYCLES               largest number of cycles of a program, 10,000 by default
//   configure TH_HD RATIO DEVICE_BASE HOME_BASE TABLE_BASE BLOCKS CONTEXTS
//   write ADDRESS BYTES        writes memory
//   read FILE                  reads a file into memory, from address 0 on
//   dump FILE BYTES            writes BYTES bytes of memory to a file, from address 0 on
//   program                    begins a program, to which the next lines
//   instruction NUMBER         add one instruction each
//   register I NUMBER
//   run                        submits and waits for the interrupt; prints code, pc, cycles from start to interrupt
//   poll                       submits and polls; prints code and pc
//   reset                      resets the core, as after a fault
//   counter OFFSET             prints a register
//   save FILE CTX              writes the checkpoint of a context to a file
//   restore FILE CTX           lets an empty context be as a checkpoint, and resets the core
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "Vopenvrex_soc.h"
#include "Vopenvrex_soc___024root.h"
#include "openvrex_checkpoint.h"
#include "verilated.h"

static const uint32_t ANSWER = 1000;  // most cycles until the bus answers

// Drives the SoC's pins, one cycle at a time.
struct Cpu {
    VerilatedContext context;
    Vopenvrex_soc soc{&context};
    uint64_t cycles = 0;
    uint32_t limit = 10000;  // most cycles of a program

    Cpu(int argc, char **argv) {
        context.commandArgs(argc, argv);
        soc.aresetn = 0;
        for (int i = 0; i < 16; i++) tick();
        soc.aresetn = 1;
        tick();
    }

    void low() {
        soc.aclk = 0;
        soc.eval();
    }

    void tick() {
        low();
        soc.aclk = 1;
        soc.eval();
        cycles++;
    }

    static void okay(unsigned response, const char *what, uint32_t address) {
        if (!response) return;
        char text[80];
        std::snprintf(text, sizeof text, "%s of register 0x%x: error response %u", what, address, response);
        throw std::runtime_error(text);
    }

    template <class Ready> void until(Ready ready, const char *what, uint32_t most = ANSWER) {
        for (uint32_t i = 0; i < most; i++) {
            low();
            if (ready()) return;
            tick();
        }
        throw std::runtime_error(std::string("no ") + what);
    }

    uint32_t read(uint32_t address) {
        soc.s_axi_araddr = address;
        soc.s_axi_arvalid = 1;
        until([&] { return soc.s_axi_arready; }, "answer to a read");
        tick();
        soc.s_axi_arvalid = 0;
        soc.s_axi_rready = 1;
        until([&] { return soc.s_axi_rvalid; }, "answer to a read");
        uint32_t value = soc.s_axi_rdata;
        unsigned response = soc.s_axi_rresp;
        tick();
        soc.s_axi_rready = 0;
        okay(response, "read", address);
        return value;
    }

    void write(uint32_t address, uint32_t value) {
        soc.s_axi_awaddr = address;
        soc.s_axi_wdata = value;
        soc.s_axi_awvalid = soc.s_axi_wvalid = 1;
        while (soc.s_axi_awvalid || soc.s_axi_wvalid) {
            until([&] { return soc.s_axi_awvalid ? soc.s_axi_awready : soc.s_axi_wready; }, "answer to a write");
            bool address_taken = soc.s_axi_awready, data_taken = soc.s_axi_wready;
            tick();
            if (address_taken) soc.s_axi_awvalid = 0;
            if (data_taken) soc.s_axi_wvalid = 0;
        }
        soc.s_axi_bready = 1;
        until([&] { return soc.s_axi_bvalid; }, "answer to a write");
        unsigned response = soc.s_axi_bresp;
        tick();
        soc.s_axi_bready = 0;
        okay(response, "write", address);
    }

    // The bytes of the memory. Verilator keeps its words in little-endian order.
    uint8_t *byte(uint64_t address) {
        auto &words = soc.rootp->openvrex_soc__DOT__memory__DOT__words;
        const uint64_t bytes = sizeof words[0];
        if (address >= bytes * words.size()) throw std::runtime_error("address beyond the memory");
        return reinterpret_cast<uint8_t *>(&words[address / bytes]) + address % bytes;
    }
};

static uint32_t bus_read(void *bus, uint32_t offset) { return static_cast<Cpu *>(bus)->read(offset); }
static void bus_write(void *bus, uint32_t offset, uint32_t value) { static_cast<Cpu *>(bus)->write(offset, value); }

static void memory_read(void *memory, uint64_t address, void *bytes, size_t count) {
    uint8_t *to = static_cast<uint8_t *>(bytes);
    for (size_t i = 0; i < count; i++) to[i] = *static_cast<Cpu *>(memory)->byte(address + i);
}

static void memory_write(void *memory, uint64_t address, const void *bytes, size_t count) {
    const uint8_t *from = static_cast<const uint8_t *>(bytes);
    for (size_t i = 0; i < count; i++) *static_cast<Cpu *>(memory)->byte(address + i) = from[i];
}

static int file_put(void *file, const void *bytes, size_t count) {
    return !static_cast<std::ostream *>(file)->write(static_cast<const char *>(bytes), (std::streamsize)count);
}

static int file_get(void *file, void *bytes, size_t count) {
    return !static_cast<std::istream *>(file)->read(static_cast<char *>(bytes), (std::streamsize)count);
}

static void check(bool good, const std::string &what) {
    if (!good) throw std::runtime_error(what);
}

static void done(openvrex_result result, const char *what) {
    check(result == OPENVREX_OK, std::string(what) + " gives " + std::to_string(result));
}

// Starts a program, waits for the interrupt and handles it; returns the cycles in between.
static uint64_t run(Cpu &cpu, const openvrex &device, const openvrex_frame &frame) {
    openvrex_enable(&device, OPENVREX_DONE | OPENVREX_FAULTED);
    done(openvrex_submit(&device, &frame), "submit");
    uint64_t start = cpu.cycles;
    cpu.until([&] { return cpu.soc.irq; }, "interrupt", cpu.limit);
    uint64_t end = cpu.cycles;
    bool fault = openvrex_poll(&device).code > OPENVREX_CODE_DONE;
    check(openvrex_interrupt(&device) == (fault ? OPENVREX_FAULTED : OPENVREX_DONE), "another interrupt");
    check(!openvrex_interrupt(&device), "an interrupt that is not cleared");
    cpu.low();
    check(!cpu.soc.irq, "an interrupt that is not cleared");
    return end - start;
}

static void smoke(Cpu &cpu, const openvrex &device) {
    const uint32_t halt[OPENVREX_WORDS] = {0}, unknown[OPENVREX_WORDS] = {15};
    openvrex_frame frame = {halt, 1, {0}, 0};
    openvrex_config config = {7, 19661, 0, 0, 0, 1, 0, 0};
    done(openvrex_configure(&device, &config), "configure");
    std::printf("halt: interrupt after %u cycles\n", (unsigned)run(cpu, device, frame));
    check(openvrex_poll(&device).code == OPENVREX_CODE_DONE, "halt does not end well");
    frame.program = unknown;
    std::printf("unknown opcode: interrupt after %u cycles\n", (unsigned)run(cpu, device, frame));
    check(openvrex_poll(&device).code == OPENVREX_CODE_OPCODE, "an unknown opcode is no fault");
    check(openvrex_submit(&device, &frame) == OPENVREX_FAULT, "a core with a fault takes a program");
    done(openvrex_reset(&device, cpu.limit), "reset");
    check(openvrex_poll(&device).code == OPENVREX_CODE_IDLE, "a reset core is not idle");
    check(OPENVREX_READ(&device, perf.lxe.sequencer.instructions) == 0, "a reset core has counted");
    frame.program = halt;
    run(cpu, device, frame);
    check(OPENVREX_READ(&device, perf.lxe.sequencer.instructions) == 1, "an instruction is not counted");
    std::puts("smoke test passed");
}

static void play(Cpu &cpu, const openvrex &device, std::istream &script) {
    std::vector<uint32_t> program;
    openvrex_frame frame = {};
    const openvrex_memory memory = {memory_read, memory_write, &cpu};
    std::string line, word;
    for (int number = 1; std::getline(script, line); number++) {
        std::istringstream in(line);
        in.unsetf(std::ios::basefield);
        if (!(in >> word)) continue;
        uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0;
        std::string text;
        bool good = true;
        if (word == "limit" && (good = bool(in >> a))) {
            cpu.limit = (uint32_t)a;
        } else if (word == "configure" && (good = bool(in >> a >> b >> c >> d >> e >> f >> g))) {
            openvrex_config config = {(uint32_t)a, (uint32_t)b, c, d, e, (uint32_t)f, (uint32_t)g, 0};
            done(openvrex_configure(&device, &config), "configure");
        } else if (word == "write" && (good = bool(in >> a >> text))) {
            for (size_t i = 0; i + 1 < text.size(); i += 2)
                *cpu.byte(a + i / 2) = (uint8_t)std::stoul(text.substr(i, 2), nullptr, 16);
        } else if (word == "read" && (good = bool(in >> text))) {
            std::ifstream file(text, std::ios::binary);
            check(bool(file), text + ": cannot be read");
            for (char byte; file.get(byte);) *cpu.byte(a++) = (uint8_t)byte;
        } else if (word == "dump" && (good = bool(in >> text >> b))) {
            std::ofstream file(text, std::ios::binary);
            for (a = 0; a < b; a++) file.put((char)*cpu.byte(a));
            check(bool(file.flush()), text + ": cannot be written");
        } else if (word == "save" && (good = bool(in >> text >> a))) {
            std::ofstream file(text, std::ios::binary);
            done(openvrex_save(&device, &memory, (uint32_t)a, file_put, &file), "save");
            check(bool(file.flush()), text + ": cannot be written");
        } else if (word == "restore" && (good = bool(in >> text >> a))) {
            std::ifstream file(text, std::ios::binary);
            check(bool(file), text + ": cannot be read");
            done(openvrex_restore(&device, &memory, (uint32_t)a, file_get, &file, cpu.limit), "restore");
        } else if (word == "program") {
            program.clear();
        } else if (word == "instruction" && (good = bool(in >> text))) {
            // A number of up to 256 bits.
            text = text.substr(text.rfind("0x") == 0 ? 2 : 0);
            text.insert(0, 8 * OPENVREX_WORDS - text.size(), '0');
            for (size_t i = OPENVREX_WORDS; i--;)
                program.push_back((uint32_t)std::stoul(text.substr(8 * i, 8), nullptr, 16));
            frame.instructions = program.size() / OPENVREX_WORDS;
        } else if (word == "register" && (good = (in >> a >> b) && a < 16)) {
            frame.registers[a] = b;
            frame.set |= 1u << a;
        } else if (word == "run" || word == "poll") {
            frame.program = program.empty() ? nullptr : program.data();
            uint64_t cycles = 0;
            if (word == "run") {
                cycles = run(cpu, device, frame);
            } else {
                done(openvrex_submit(&device, &frame), "submit");
                check(openvrex_wait(&device, cpu.limit) != OPENVREX_TIMEOUT, "no end");
            }
            openvrex_status status = openvrex_poll(&device);
            std::printf("%s code %d pc %u cycles %llu\n", word.c_str(), status.code, status.pc, (unsigned long long)cycles);
            program.clear();
            frame = openvrex_frame{};
        } else if (word == "reset") {
            done(openvrex_reset(&device, cpu.limit), "reset");
        } else if (word == "counter" && (good = bool(in >> a))) {
            std::printf("counter 0x%x %u\n", (unsigned)a, openvrex_read(&device, (uint32_t)a));
        } else {
            good = false;
        }
        check(good && !(in >> word), "line " + std::to_string(number) + ": '" + line + "' is no command; see main.cpp");
    }
}

int main(int argc, char **argv) {
    try {
        Cpu cpu(argc, argv);
        openvrex device;
        done(openvrex_init(&device, bus_read, bus_write, &cpu), "init");
        done(openvrex_reset(&device, cpu.limit), "reset");
        std::string name = cpu.context.commandArgsPlusMatch("script=");
        if (name.empty()) {
            smoke(cpu, device);
        } else {
            name = name.substr(std::strlen("+script="));
            std::ifstream script(name);
            check(bool(script), name + ": cannot be read");
            play(cpu, device, script);
        }
        return 0;
    } catch (const std::exception &e) {
        std::fflush(stdout);
        std::cerr << "error: " << e.what() << "\n";
        return 1;
    }
}
