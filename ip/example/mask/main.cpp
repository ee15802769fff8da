// The CPU of the example SoC, the video decoder and the vision encoder at its streams: runs the driver on the Verilated
// model.
//
// Without an argument it runs a smoke test. With +script=FILE it executes the file's lines. Numbers are decimal, or
// hexadecimal after 0x:
//   limit CYCLES               largest number of cycles of a frame, 100,000 by default
//   block DATA                 a block of the next frame: a beat of s_axis_b, hexadecimal
//   run WIDTH HEIGHT THRESHOLD WEIGHT LEADS TAKE ACCUMULATE   starts a frame with these blocks and waits for the
//                              interrupt; prints code, tokens kept, cycles, and the rows of the mask
//   poll ...                   the same, and polls
//   reset                      drops blocks that are not sent, and resets the block, as after a fault
//   counter OFFSET             prints a register
#include "cpu.h"
#include "openvrex_mask.h"
#include "stream.h"

struct Host : Cpu {
    std::deque<Beat> blocks;
    std::vector<uint64_t> rows;
    bool block_taken = false, row_taken = false;

    using Cpu::Cpu;

    void before() override {
        block_taken = soc.s_axis_b_tvalid && soc.s_axis_b_tready;
        row_taken = soc.m_axis_m_tvalid && soc.m_axis_m_tready;
        if (row_taken) rows.push_back((uint64_t)soc.m_axis_m_tdata);
    }

    void after() override {
        if (block_taken) blocks.pop_front();
        offer();
    }

    void offer() {
        soc.m_axis_m_tready = 1;
        if ((soc.s_axis_b_tvalid = !blocks.empty())) {
            set(soc.s_axis_b_tdata, blocks.front().data);
            soc.s_axis_b_tlast = blocks.front().last & 1;
        }
    }
};

// Starts a frame and waits for its end, by the interrupt or by polls; returns the cycles in between.
static uint64_t run(Host &host, const openvrex_mask &device, const openvrex_mask_frame &frame, bool polls = false) {
    host.rows.clear();
    if (!host.blocks.empty()) host.blocks.back().last = 1;
    openvrex_mask_enable(&device, OPENVREX_MASK_DONE | OPENVREX_MASK_FAULTED);
    done(openvrex_mask_start(&device, &frame), "start");
    uint64_t start = host.cycles;
    if (polls)
        check(openvrex_mask_wait(&device, host.limit) != OPENVREX_MASK_TIMEOUT, "no end");
    else
        host.until([&] { return host.soc.irq; }, "interrupt", host.limit);
    uint64_t end = host.cycles;
    bool fault = openvrex_mask_wait(&device, 1) == OPENVREX_MASK_FAULT;
    check(openvrex_mask_interrupt(&device) == (uint32_t)(fault ? OPENVREX_MASK_FAULTED : OPENVREX_MASK_DONE),
          "another interrupt");
    host.low();
    check(!host.soc.irq, "an interrupt that is not cleared");
    return end - start;
}

// A picture of 64 x 64 pixels: the first frame of a GOP is kept whole, in the second nothing has a vector.
static void smoke(Host &host, const openvrex_mask &device) {
    const uint32_t side = MOTION_MASK_IP__IDENTITY__GRID__VALUE_reset / MOTION_MASK_IP__IDENTITY__GROUP__VALUE_reset;
    openvrex_mask_frame frame = {63, 63, 0, 0, 0, 1, 1, 1};
    run(host, device, frame);
    check(openvrex_mask_kept(&device) == side * side, "the first frame of a GOP is not kept whole");
    check(host.rows.size() == side, "a mask has another number of rows");
    // A block that stands still at the left upper corner, over the whole picture.
    frame.leads = 0;
    frame.blocks = 1;
    host.blocks = {{"00000000fcfc00000000", 0, 1}};
    run(host, device, frame);
    check(openvrex_mask_kept(&device) == 0, "a still picture has tokens to encode");
    std::printf("%u tokens, then none\n", side * side);
    frame.blocks = 2;
    host.blocks = {{"00000000fcfc00000000", 0, 1}};
    run(host, device, frame);
    check(openvrex_mask_start(&device, &frame) == OPENVREX_MASK_FAULT, "a block that is missing is no fault");
    done(openvrex_mask_reset(&device, host.limit), "reset");
    frame.blocks = 0;
    run(host, device, frame);
    std::puts("smoke test passed");
}

struct Player {
    Host &host;
    const openvrex_mask &device;

    bool operator()(const std::string &word, std::istream &in);
};

// Executes a line of a script; whether it is complete.
bool Player::operator()(const std::string &word, std::istream &in) {
    uint32_t v[7] = {};
    std::string text;
    bool good = false;
    if (word == "limit") {
        good = bool(in >> host.limit);
    } else if (word == "block" && (good = bool(in >> text))) {
        host.blocks.push_back({text, 0, 0});
    } else if (word == "run" || word == "poll") {
        good = true;
        for (uint32_t &one : v) good = good && in >> one;
        if (!good) return false;
        openvrex_mask_frame frame = {v[0], v[1], (uint32_t)host.blocks.size(), v[2], v[3], v[4], v[5], v[6]};
        uint64_t cycles = run(host, device, frame, word == "poll");
        bool fault = openvrex_mask_wait(&device, 1) == OPENVREX_MASK_FAULT;
        std::printf("%s %s kept %u cycles %llu rows", word.c_str(), fault ? "fault" : "done",
                    openvrex_mask_kept(&device), (unsigned long long)cycles);
        for (uint64_t row : host.rows) std::printf(" 0x%llx", (unsigned long long)row);
        std::puts("");
    } else if (word == "reset") {
        host.blocks.clear();
        host.offer();
        done(openvrex_mask_reset(&device, host.limit), "reset");
        good = true;
    } else if (word == "counter" && (good = bool(in >> v[0]))) {
        std::printf("counter 0x%x %u\n", v[0], device.read(device.bus, v[0]));
    }
    return good;
}

int main(int argc, char **argv) {
    Host host(argc, argv);
    openvrex_mask device;
    auto begin = [&] {
        host.limit = 100000;
        done(openvrex_mask_init(&device, bus_read, bus_write, static_cast<Cpu *>(&host)), "init");
        done(openvrex_mask_reset(&device, host.limit), "reset");
    };
    Player player{host, device};
    return main_of(host, begin, player, [&] { smoke(host, device); });
}
