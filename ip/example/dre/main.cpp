// The CPU of the example SoC, and the GPU or NPU at its streams: runs the driver on the Verilated model.
//
// Without an argument it runs a smoke test. With +script=FILE it executes the file's lines. Numbers are decimal, or
// hexadecimal after 0x; bytes are hexadecimal:
//   limit CYCLES               largest number of cycles of a command, 10,000 by default
//   configure TH_HD RATIO DEVICE_BASE HOME_BASE TABLE_BASE BLOCKS CONTEXTS
//   write ADDRESS BYTES        writes memory
//   read FILE                  reads a file into memory, from address 0 on
//   dump FILE BYTES            writes BYTES bytes of memory to a file, from address 0 on
//   key DATA USER LAST         sends a beat of s_axis_k beside the commands that follow; DATA is hexadecimal
//   row DATA USER LAST         the same of s_axis_s
//   run ACTION BASE ENTRIES SHIFT   starts a command and waits for the interrupt; prints code, result, count, cycles
//   poll ACTION BASE ENTRIES SHIFT  the same, and polls
//   reset                      drops beats that are not sent, and resets the DRE, as after a fault
//   counter OFFSET             prints a register
//   save FILE CTX              writes the checkpoint of a context to a file
//   restore FILE CTX           lets an empty context be as a checkpoint, and resets the DRE
#include "cpu_memory.h"
#include "openvrex_dre.h"
#include "openvrex_dre_checkpoint.h"
#include "stream.h"

struct Host : Cpu {
    std::deque<Beat> keys, rows;
    bool key_taken = false, row_taken = false;

    using Cpu::Cpu;

    void before() override {
        key_taken = soc.s_axis_k_tvalid && soc.s_axis_k_tready;
        row_taken = soc.s_axis_s_tvalid && soc.s_axis_s_tready;
    }

    void after() override {
        if (key_taken) keys.pop_front();
        if (row_taken) rows.pop_front();
        offer();
    }

    void offer() {
        if ((soc.s_axis_k_tvalid = !keys.empty())) {
            set(soc.s_axis_k_tdata, keys.front().data);
            soc.s_axis_k_tuser = keys.front().user;
            soc.s_axis_k_tlast = keys.front().last & 1;
        }
        if ((soc.s_axis_s_tvalid = !rows.empty())) {
            set(soc.s_axis_s_tdata, rows.front().data);
            soc.s_axis_s_tuser = rows.front().user;
            soc.s_axis_s_tlast = rows.front().last & 1;
        }
    }
};

// Starts a command, waits for the interrupt and handles it; returns the cycles in between.
static uint64_t run(Host &host, const openvrex_dre &device, const openvrex_dre_command &command) {
    openvrex_dre_enable(&device, OPENVREX_DRE_DONE | OPENVREX_DRE_FAULTED);
    done(openvrex_dre_start(&device, &command), "start");
    uint64_t start = host.cycles;
    host.until([&] { return host.soc.irq; }, "interrupt", host.limit);
    uint64_t end = host.cycles;
    bool fault = openvrex_dre_poll(&device).code > OPENVREX_DRE_CODE_DONE;
    check((openvrex_dre_interrupt(&device) & 3) == (fault ? OPENVREX_DRE_FAULTED : OPENVREX_DRE_DONE),
          "another interrupt");
    host.low();
    check(!host.soc.irq, "an interrupt that is not cleared");
    return end - start;
}

// Three keys of context 0: the first two are alike, the third differs in every bit.
static void smoke(Host &host, const openvrex_dre &device) {
    const uint64_t FRESH = 0x100000, RINGS = 0x200000, HOMES = 0x300000, SIZE = DRE_IP__IDENTITY__ENTRY_BYTES__VALUE_reset;
    const openvrex_dre_config config = {7, 19661, RINGS, HOMES, 0, 4, 1, 0};
    uint64_t row = 0, clusters = 0;
    for (uint64_t i = 0; i < OPENVREX_DRE_TABLES_BYTES(1); i++) *byte(host, i) = 0;
    for (uint64_t i = 0; i < 3 * SIZE; i++) *byte(host, FRESH + i) = (uint8_t)(7 * i + 1);
    done(openvrex_dre_configure(&device, &config), "configure");
    done(openvrex_dre_reset(&device, host.limit), "reset");
    openvrex_dre_enable(&device, OPENVREX_DRE_DONE);
    openvrex_dre_raise(&device, OPENVREX_DRE_DONE);
    host.until([&] { return host.soc.irq; }, "interrupt of a test");
    check(openvrex_dre_interrupt(&device) == OPENVREX_DRE_DONE, "a test raises other events");
    host.keys = {{"0", 0, 0}, {"0", 1, 0}, {std::string(sizeof host.soc.s_axis_k_tdata * 2, 'f'), 2, 1}};
    const uint64_t wants[3][2] = {{0x40, 1}, {0x40, 1}, {0x48, 2}};
    for (uint64_t i = 0; i < 3; i++) {
        done(openvrex_dre_cluster(&device, 0x40, 3, host.limit, &row, &clusters), "cluster");
        check(row == wants[i][0] && clusters == wants[i][1], "a key joins another cluster");
        done(openvrex_dre_place(&device, FRESH + i * SIZE, 1, host.limit), "place");
    }
    for (uint64_t i = 0; i < 3 * SIZE; i++)
        check(*byte(host, RINGS + i) == *byte(host, FRESH + i), "an entry is not in its ring");
    std::puts("3 keys, 2 clusters, entries in the ring");
    done(openvrex_dre_switch(&device, 0, host.limit, &clusters), "switch");
    check(clusters == 2, "a context has lost its clusters");
    done(openvrex_dre_clear(&device, 0, host.limit), "clear");
    const openvrex_dre_command unaligned = {OPENVREX_DRE_CLEAR, (uint64_t)DRE_IP__IDENTITY__CONTEXTS__VALUE_reset, 1, 0};
    run(host, device, unaligned);
    check(openvrex_dre_poll(&device).code == OPENVREX_DRE_CODE_RANGE, "an unknown context is no fault");
    check(openvrex_dre_start(&device, &unaligned) == OPENVREX_DRE_FAULT, "a DRE with a fault takes a command");
    done(openvrex_dre_reset(&device, host.limit), "reset");
    done(openvrex_dre_switch(&device, 0, host.limit, &clusters), "switch");
    check(clusters == 0, "a cleared context has clusters");
    std::puts("smoke test passed");
}

struct Player {
    Host &host;
    const openvrex_dre &device;

    bool operator()(const std::string &word, std::istream &in);
};

// Executes a line of a script; whether it is complete.
bool Player::operator()(const std::string &word, std::istream &in) {
    const openvrex_dre_memory memory = {memory_read, memory_write, static_cast<Cpu *>(&host)};
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0;
    std::string text;
    bool known = true, good = play_memory(host, word, in, known);
    if (known) return good;
    if (word == "limit") {
        good = bool(in >> a);
        host.limit = (uint32_t)a;
    } else if (word == "configure" && (good = bool(in >> a >> b >> c >> d >> e >> f >> g))) {
        openvrex_dre_config config = {(uint32_t)a, (uint32_t)b, c, d, e, (uint32_t)f, (uint32_t)g, 0};
        done(openvrex_dre_configure(&device, &config), "configure");
    } else if ((word == "key" || word == "row") && (good = bool(in >> text >> a >> b))) {
        (word == "key" ? host.keys : host.rows).push_back({text, (uint32_t)a, (uint32_t)b});
    } else if ((word == "run" || word == "poll") && (good = bool(in >> a >> b >> c >> d))) {
        openvrex_dre_command command = {(openvrex_dre_action)a, b, (uint32_t)c, (uint32_t)d};
        uint64_t cycles = 0;
        if (word == "run")
            cycles = run(host, device, command);
        else
            check(openvrex_dre_run(&device, &command, host.limit, nullptr, nullptr) != OPENVREX_DRE_TIMEOUT, "no end");
        uint64_t low = OPENVREX_DRE_READ(&device, result), count = OPENVREX_DRE_READ(&device, count);
        low |= (uint64_t)openvrex_dre_read(&device, (uint32_t)offsetof(dre_ip_t, result) + 4) << 32;
        count |= (uint64_t)openvrex_dre_read(&device, (uint32_t)offsetof(dre_ip_t, count) + 4) << 32;
        std::printf("%s code %d result %llu count %llu cycles %llu\n", word.c_str(), openvrex_dre_poll(&device).code,
                    (unsigned long long)low, (unsigned long long)count, (unsigned long long)cycles);
    } else if (word == "save" && (good = bool(in >> text >> a))) {
        std::ofstream file(text, std::ios::binary);
        done(openvrex_dre_save(&device, &memory, (uint32_t)a, file_put, &file), "save");
        check(bool(file.flush()), text + ": cannot be written");
    } else if (word == "restore" && (good = bool(in >> text >> a))) {
        std::ifstream file(text, std::ios::binary);
        check(bool(file), text + ": cannot be read");
        done(openvrex_dre_restore(&device, &memory, (uint32_t)a, file_get, &file, host.limit), "restore");
    } else if (word == "reset") {
        host.keys.clear();
        host.rows.clear();
        host.offer();
        done(openvrex_dre_reset(&device, host.limit), "reset");
        good = true;
    } else if (word == "counter" && (good = bool(in >> a))) {
        std::printf("counter 0x%x %u\n", (unsigned)a, openvrex_dre_read(&device, (uint32_t)a));
    }
    return good;
}

int main(int argc, char **argv) {
    Host host(argc, argv);
    openvrex_dre device;
    auto begin = [&] {
        done(openvrex_dre_init(&device, bus_read, bus_write, static_cast<Cpu *>(&host)), "init");
        done(openvrex_dre_reset(&device, host.limit), "reset");
    };
    Player player{host, device};
    return main_of(host, begin, player, [&] { smoke(host, device); });
}
