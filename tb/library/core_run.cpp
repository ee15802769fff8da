// The program around a simulated core: clock, reset, and the bytes of its memory. See tb/library/core_simulator.py.
//
//   SIMULATOR +image=FILE +stores=FD [--trace]
//
// The memory is FILE, mapped privately: the simulation never changes the file, and all simulations share its unchanged
// pages. A record of each written beat goes to the open file FD: port (1 byte), number of the word (8 bytes, lowest
// first), strobes (a bit a byte), bytes. `--trace` writes a waveform to the current folder.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "Vtop.h"
#include "svdpi.h"
#include "verilated.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Wave = VerilatedFstC;
#define WAVE "dump.fst"
#elif VM_TRACE
#include "verilated_vcd_c.h"
using Wave = VerilatedVcdC;
#define WAVE "dump.vcd"
#endif

static uint8_t* memory;
static uint64_t size;
static int bytes;
static FILE* stores;

static void fail(const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}

static std::string argument(const char* name) {
    const std::string start = std::string(name) + "=";
    const std::string found = Verilated::commandArgsPlusMatch(start.c_str());
    if (found.empty()) fail(std::string("no argument +") + start);
    return found.substr(start.size() + 1);
}

static uint8_t* at(long long word) {
    const uint64_t first = static_cast<uint64_t>(word) * bytes;
    if (first + bytes > size) {
        char text[80];
        std::snprintf(text, sizeof text, "address %#" PRIx64 " lies behind the memory of %" PRIu64 " bytes", first, size);
        fail(text);
    }
    return memory + first;
}

extern "C" void memory_open(int width) {
    bytes = width;
    const int file = open(argument("image").c_str(), O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found)) fail("the image cannot be read");
    size = found.st_size;
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) fail("the image cannot be mapped");
    memory = static_cast<uint8_t*>(mapped);
    close(file);
    stores = fdopen(std::stoi(argument("stores")), "wb");
    if (!stores) fail("no file for the stores");
}

extern "C" void memory_read(long long word, svBitVecVal* data) { std::memcpy(data, at(word), bytes); }

extern "C" void memory_write(int port, long long word, const svBitVecVal* strobes, const svBitVecVal* data) {
    uint8_t* to = at(word);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(data);
    for (int i = 0; i < bytes; i++)
        if (strobes[i / 32] >> i % 32 & 1) to[i] = from[i];
    std::fputc(port, stores);
    std::fwrite(&word, 8, 1, stores);
    std::fwrite(strobes, (bytes + 7) / 8, 1, stores);
    std::fwrite(from, bytes, 1, stores);
}

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vtop top{&context};
#if VM_TRACE
    Wave wave;
    const bool traced = argc > 1 && std::string(argv[argc - 1]) == "--trace";
    context.traceEverOn(true);
    if (traced) {
        top.trace(&wave, 99);
        wave.open(WAVE);
    }
#endif
    while (!context.gotFinish()) {
        const uint64_t edge = context.time();
        top.clk = edge & 1;
        top.rst = edge < 6;  // falls between rising edges
        top.eval();
#if VM_TRACE
        if (traced) wave.dump(edge);
#endif
        context.timeInc(1);
    }
    top.final();
#if VM_TRACE
    if (traced) wave.close();
#endif
    if (stores) std::fclose(stores);
    return 0;
}
