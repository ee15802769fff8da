// The CPU of an example SoC, as its bus sees it: it moves the AXI4-Lite pins of the Verilated model.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "Vopenvrex_soc.h"
#include "Vopenvrex_soc___024root.h"
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
        before();
        soc.aclk = 1;
        soc.eval();
        after();
        cycles++;
    }

    // What else happens at the pins: before the rising edge, when outputs are settled, and behind it.
    virtual void before() {}
    virtual void after() {}
    virtual ~Cpu() {}

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
};

static uint32_t bus_read(void *bus, uint32_t offset) { return static_cast<Cpu *>(bus)->read(offset); }
static void bus_write(void *bus, uint32_t offset, uint32_t value) { static_cast<Cpu *>(bus)->write(offset, value); }

static void check(bool good, const std::string &what) {
    if (!good) throw std::runtime_error(what);
}

static void done(int result, const char *what) {
    check(result == 0, std::string(what) + " gives " + std::to_string(result));
}

// `begin`, then a script, if the command line names one: `play` of each line's first word and the rest. Else `smoke`.
template <class Begin, class Play, class Smoke> int main_of(Cpu &cpu, Begin begin, Play &play, Smoke smoke) {
    try {
        begin();
        std::string name = cpu.context.commandArgsPlusMatch("script="), line, word;
        if (name.empty()) {
            smoke();
            return 0;
        }
        name = name.substr(std::strlen("+script="));
        std::ifstream script(name);
        check(bool(script), name + ": cannot be read");
        for (int number = 1; std::getline(script, line); number++) {
            std::istringstream in(line);
            in.unsetf(std::ios::basefield);
            if (!(in >> word)) continue;
            check(play(word, in) && !(in >> word),
                  "line " + std::to_string(number) + ": '" + line + "' is no command; see main.cpp");
        }
        return 0;
    } catch (const std::exception &e) {
        std::fflush(stdout);
        std::cerr << "error: " << e.what() << "\n";
        return 1;
    }
}
