/* Driver of an OpenVRex block in C99: what it is, its configuration, interrupts and resets. It needs no library, and no
 * memory beyond `struct openvrex`.
 *
 * core_ip.h describes the registers; it is generated with the block. The caller provides two access functions, so that
 * the same code runs on bare metal, on Linux over UIO and in a simulator. Accesses have 32 bits and keep program order.
 *
 * One thread uses a device at a time. An interrupt handler may call openvrex_interrupt at any time.
 */
#ifndef OPENVREX_BLOCK_H
#define OPENVREX_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "core_ip.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Results of the functions. */
enum openvrex_result {
    OPENVREX_OK = 0,
    OPENVREX_NO_DEVICE = -1, /* there is no such block */
    OPENVREX_VERSION = -2,   /* its registers have another MAJOR than core_ip.h, or an older MINOR */
    OPENVREX_PARAMETERS = -3, /* its parameters differ from those of core_ip.h */
    OPENVREX_RANGE = -4,     /* an argument does not fit its register */
    OPENVREX_BUSY = -5,      /* the block runs, or a reset is pending */
    OPENVREX_FAULT = -6,     /* it ended with a fault: call openvrex_reset */
    OPENVREX_TIMEOUT = -7,   /* the polls did not suffice */
    /* of openvrex_checkpoint.h: */
    OPENVREX_FULL = -8,       /* the pool has too few free blocks */
    OPENVREX_USED = -9,       /* the context holds something: clear it first */
    OPENVREX_CHECKPOINT = -10, /* this is no checkpoint for this device */
    OPENVREX_MEMORY = -11,    /* the tables in memory have errors */
    OPENVREX_FILE = -12       /* the caller's function failed */
};

/* State of what was started, or how it ended: status.code. */
enum openvrex_code {
    OPENVREX_CODE_IDLE = 0,
    OPENVREX_CODE_RUNNING = 1,
    OPENVREX_CODE_DONE = 2,
    OPENVREX_CODE_OPCODE = 3,
    OPENVREX_CODE_RANGE = 4,
    OPENVREX_CODE_DEADLOCK = 5,
    OPENVREX_CODE_BUS = 6,
    OPENVREX_CODE_SEMAPHORE = 7,
    OPENVREX_CODE_FULL = 8,
    OPENVREX_CODE_MEMORY = 9,
    OPENVREX_CODE_LENGTH = 10,
    OPENVREX_CODE_TIMEOUT = 11
};

/* Interrupts: bits of `events`. */
enum openvrex_event {
    OPENVREX_DONE = CORE_IP__IRQ__DONE_bm,
    OPENVREX_FAULTED = CORE_IP__IRQ__FAULT_bm,
    OPENVREX_CORRECTED = CORE_IP__IRQ__CORRECTED_bm
};

struct openvrex {
    uint32_t (*read)(void *bus, uint32_t offset);
    void (*write)(void *bus, uint32_t offset, uint32_t value);
    void *bus; /* first argument of both */
};

/* Settings that stay the same while something runs. */
struct openvrex_config {
    uint32_t th_hd;       /* Hamming distance below which a key joins a cluster */
    uint32_t ratio;       /* Th_r-wics in units of 2^-16, at most 65536 */
    uint64_t device_base; /* first byte of the rings of recent entries, a multiple of identity.word_bytes; places of kept
                           * blocks, if the core has them, lie in front of it */
    uint64_t home_base;   /* first byte of the blocks of offloaded entries, a multiple of identity.word_bytes */
    uint64_t table_base;  /* first byte of the pool and the tables of contexts, a multiple of 4,096; zero at first */
    uint32_t blocks;      /* blocks of offload memory */
    uint32_t contexts;    /* contexts whose tables, rings and blocks you have reserved memory for */
    uint32_t watchdog;    /* cycles after which what was started ends with OPENVREX_CODE_TIMEOUT; 0: never */
};

/* Who may do what in a region: bits of `allow`. */
enum openvrex_allow {
    OPENVREX_LOAD = 1,        /* the LXE reads */
    OPENVREX_STORE = 2,       /* the LXE writes */
    OPENVREX_ENTRY_READ = 4,  /* the retriever reads entries */
    OPENVREX_ENTRY_WRITE = 8, /* the retriever writes entries */
    OPENVREX_TABLE_READ = 16, /* the DRE reads its tables */
    OPENVREX_TABLE_WRITE = 32 /* the DRE writes its tables */
};

/* Memory that a block may reach. */
struct openvrex_region {
    uint64_t first; /* its first byte, a multiple of 4,096 */
    uint64_t bytes; /* its size, a multiple of 4,096, at least that */
    uint32_t allow;
};

/* A burst outside the regions. */
struct openvrex_refused {
    uint32_t manager; /* whose it was: 0 the LXE, 1 the retriever, 2 the DRE */
    uint32_t write;   /* 1: a write */
    uint64_t page;    /* where: a multiple of 4,096 */
};

struct openvrex_status {
    enum openvrex_code code;
    uint32_t engines; /* of a core, engines with work: LOAD, MUL, VECTOR, STORE, RETRIEVE from bit 0 on */
    uint32_t bus;     /* answers on the bus are outstanding */
    uint32_t resets;  /* a reset is pending */
    uint32_t pc;      /* of a core: address of the instruction issued last */
};

/* A register by its name in core_ip.h, e.g. a counter: OPENVREX_READ(&device, perf.lxe.sequencer.instructions). */
#define OPENVREX_READ(device, name) openvrex_read((device), (uint32_t)offsetof(core_ip_t, name))

/* Check that the block is the one that core_ip.h describes, disable interrupts and clear pending ones. Call
 * openvrex_reset next: the block may still be clearing its memories, or hold an earlier state. */
enum openvrex_result openvrex_init(struct openvrex *device, uint32_t (*read)(void *, uint32_t),
                                   void (*write)(void *, uint32_t, uint32_t), void *bus);

/* Set the configuration. BUSY while something runs. */
enum openvrex_result openvrex_configure(const struct openvrex *device, const struct openvrex_config *config);

/* Let the block read and write in these n regions alone, whatever its programs, tables and settings say; n = 0:
 * everywhere, as after power-up. What reaches beyond ends with OPENVREX_CODE_BUS. RANGE for more regions than the block
 * has. BUSY while something runs. */
enum openvrex_result openvrex_confine(const struct openvrex *device, const struct openvrex_region *regions, unsigned n);

/* Say whose program or command runs next, where users share the block (kvmu.shared): the one of contexts `first` to
 * `end` - 1, of which each holds `quota` blocks at most, or any number with 0. RANGE for contexts and blocks that the
 * block does not have, and for a block that is not made to be shared. BUSY while something runs. */
enum openvrex_result openvrex_share(const struct openvrex *device, uint32_t first, uint32_t end, uint32_t quota);

/* Whether a burst was refused since the last reset, and which was the first. */
int openvrex_refused(const struct openvrex *device, struct openvrex_refused *first);

/* Choose the events that reach the interrupt pin. */
void openvrex_enable(const struct openvrex *device, uint32_t events);

/* Raise events as hardware would, to test the handler and the wiring of the pin. */
void openvrex_raise(const struct openvrex *device, uint32_t events);

/* Read the status. */
struct openvrex_status openvrex_poll(const struct openvrex *device);

/* Poll until nothing runs. Returns OK, FAULT, or TIMEOUT after `polls` polls. */
enum openvrex_result openvrex_wait(const struct openvrex *device, uint32_t polls);

/* For the interrupt handler: clear the pending events and return them; 0 if another device raised the interrupt. */
uint32_t openvrex_interrupt(const struct openvrex *device);

/* Request a reset, and poll until it is done. A core first waits for the end of its program; every block waits for
 * outstanding answers on the bus. Configuration, interrupts and all tables in memory stay. What was started, counters,
 * and a core's program and R registers are lost. */
enum openvrex_result openvrex_reset(const struct openvrex *device, uint32_t polls);

/* OK if the block takes writes, else BUSY. */
enum openvrex_result openvrex_quiet(const struct openvrex *device);

/* Read a register by its offset. */
uint32_t openvrex_read(const struct openvrex *device, uint32_t offset);

/* Write a register of 64 bits by its offset: the lower half, then the upper one. */
void openvrex_write_wide(const struct openvrex *device, uint32_t offset, uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
