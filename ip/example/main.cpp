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
#include "cpu_memory.h"
#include "openvrex.h"
#include "openvrex_checkpoint.h"

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
    openvrex_enable(&device, OPENVREX_FAULTED);
    openvrex_raise(&device, OPENVREX_DONE);
    cpu.low();
    check(!cpu.soc.irq, "an interrupt that is not enabled reaches the pin");
    openvrex_raise(&device, OPENVREX_FAULTED);
    cpu.until([&] { return cpu.soc.irq; }, "interrupt of a test");
    check(openvrex_interrupt(&device) == (OPENVREX_DONE | OPENVREX_FAULTED), "a test raises other events");
    cpu.low();
    check(!cpu.soc.irq, "an interrupt of a test that is not cleared");
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

struct Player {
    Cpu &cpu;
    const openvrex &device;
    std::vector<uint32_t> program;
    openvrex_frame frame = {};

    bool operator()(const std::string &word, std::istream &in);
};

// Executes a line of a script; whether it is complete.
bool Player::operator()(const std::string &word, std::istream &in) {
    const openvrex_memory memory = {memory_read, memory_write, &cpu};
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0;
    std::string text;
    bool known = true, good = play_memory(cpu, word, in, known);
    if (known) return good;
    if (word == "limit") {
        good = bool(in >> a);
        cpu.limit = (uint32_t)a;
    } else if (word == "configure" && (good = bool(in >> a >> b >> c >> d >> e >> f >> g))) {
        openvrex_config config = {(uint32_t)a, (uint32_t)b, c, d, e, (uint32_t)f, (uint32_t)g, 0};
        done(openvrex_configure(&device, &config), "configure");
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
        good = true;
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
        good = true;
    } else if (word == "reset") {
        done(openvrex_reset(&device, cpu.limit), "reset");
        good = true;
    } else if (word == "counter" && (good = bool(in >> a))) {
        std::printf("counter 0x%x %u\n", (unsigned)a, openvrex_read(&device, (uint32_t)a));
    }
    return good;
}

int main(int argc, char **argv) {
    Cpu cpu(argc, argv);
    openvrex device;
    auto begin = [&] {
        done(openvrex_init(&device, bus_read, bus_write, &cpu), "init");
        done(openvrex_reset(&device, cpu.limit), "reset");
    };
    Player player{cpu, device, {}};
    return main_of(cpu, begin, player, [&] { smoke(cpu, device); });
}
