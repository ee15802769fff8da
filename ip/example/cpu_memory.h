// The memory of an example SoC, as the CPU sees it without the bus: for the driver's checkpoints and for scripts.
#include "cpu.h"

// A byte of the memory. Verilator keeps its words in little-endian order.
static uint8_t *byte(Cpu &cpu, uint64_t address) {
    auto &words = cpu.soc.rootp->openvrex_soc__DOT__memory__DOT__words;
    const uint64_t bytes = sizeof words[0];
    if (address >= bytes * words.size()) throw std::runtime_error("address beyond the memory");
    return reinterpret_cast<uint8_t *>(&words[address / bytes]) + address % bytes;
}

static void memory_read(void *memory, uint64_t address, void *bytes, size_t count) {
    uint8_t *to = static_cast<uint8_t *>(bytes);
    for (size_t i = 0; i < count; i++) to[i] = *byte(*static_cast<Cpu *>(memory), address + i);
}

static void memory_write(void *memory, uint64_t address, const void *bytes, size_t count) {
    const uint8_t *from = static_cast<const uint8_t *>(bytes);
    for (size_t i = 0; i < count; i++) *byte(*static_cast<Cpu *>(memory), address + i) = from[i];
}

static int file_put(void *file, const void *bytes, size_t count) {
    return !static_cast<std::ostream *>(file)->write(static_cast<const char *>(bytes), (std::streamsize)count);
}

static int file_get(void *file, void *bytes, size_t count) {
    return !static_cast<std::istream *>(file)->read(static_cast<char *>(bytes), (std::streamsize)count);
}

// Executes a line of a script about memory; whether it is one and complete. `known` tells whether the word is one.
static bool play_memory(Cpu &cpu, const std::string &word, std::istream &in, bool &known) {
    uint64_t a = 0, b = 0;
    std::string text;
    known = true;
    if (word == "write") {
        if (!(in >> a >> text)) return false;
        for (size_t i = 0; i + 1 < text.size(); i += 2)
            *byte(cpu, a + i / 2) = (uint8_t)std::stoul(text.substr(i, 2), nullptr, 16);
    } else if (word == "read") {
        if (!(in >> text)) return false;
        std::ifstream file(text, std::ios::binary);
        check(bool(file), text + ": cannot be read");
        for (char one; file.get(one);) *byte(cpu, a++) = (uint8_t)one;
    } else if (word == "dump") {
        if (!(in >> text >> b)) return false;
        std::ofstream file(text, std::ios::binary);
        for (a = 0; a < b; a++) file.put((char)*byte(cpu, a));
        check(bool(file.flush()), text + ": cannot be written");
    } else {
        known = false;
    }
    return known;
}
