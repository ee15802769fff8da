/* Driver of an OpenVRex core: C99, no library, no memory of its own beyond `struct openvrex`.
 *
 * Registers are those of core_ip.h, which is generated with the block. Accesses go through two functions, so that the
 * same code runs on bare metal, on Linux over UIO and in a simulator. They are of 32 bits, in the order of the program.
 *
 * One thread uses a device at a time; openvrex_interrupt may be called from an interrupt handler at any time.
 */
#ifndef OPENVREX_H
#define OPENVREX_H

#include <stddef.h>
#include <stdint.h>

#include "core_ip.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What functions give. */
enum openvrex_result {
    OPENVREX_OK = 0,
    OPENVREX_NO_DEVICE = -1, /* no OpenVRex core there */
    OPENVREX_VERSION = -2,   /* registers of another MAJOR than core_ip.h's, or of an older MINOR */
    OPENVREX_PARAMETERS = -3, /* a core of other parameters than core_ip.h's */
    OPENVREX_RANGE = -4,     /* an argument that does not fit its register */
    OPENVREX_BUSY = -5,      /* a program runs, or a reset waits */
    OPENVREX_FAULT = -6,     /* a program has ended with a fault: openvrex_reset */
    OPENVREX_TIMEOUT = -7    /* so many polls did not suffice */
};

/* How a program stands or ended: status.code. */
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
    OPENVREX_CODE_MEMORY = 9
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
    void *bus; /* handed to both */
};

/* What stays while programs run. */
struct openvrex_config {
    uint32_t th_hd;       /* Hamming distance below which a key joins a cluster */
    uint32_t ratio;       /* Th_r-wics in units of 2^-16, at most 65536 */
    uint64_t device_base; /* first byte of the rings of recent entries */
    uint64_t home_base;   /* first byte of the blocks of offloaded entries */
};

/* A program and what it starts with. */
struct openvrex_frame {
    const uint32_t *program; /* OPENVREX_WORDS words an instruction, the lowest first; NULL: that which is loaded */
    size_t instructions;
    uint64_t registers[16]; /* R0 to R15 */
    uint32_t set;           /* bit i: set R[i]; others keep their values */
};

struct openvrex_status {
    enum openvrex_code code;
    uint32_t engines; /* with work: LOAD, MUL, VECTOR, STORE, RETRIEVE from bit 0 on */
    uint32_t bus;     /* it owes an answer */
    uint32_t resets;  /* a reset waits */
    uint32_t pc;      /* of the instruction issued last */
};

#define OPENVREX_WORDS 8u

/* A register by its name in core_ip.h, e.g. a counter: OPENVREX_READ(&device, perf.lxe.sequencer.instructions). */
#define OPENVREX_READ(device, name) openvrex_read((device), (uint32_t)offsetof(core_ip_t, name))

/* Is it what core_ip.h describes? Interrupts are off and none is pending afterwards. Then call openvrex_reset: the core
 * may be resetting its memories still, or be left as another program left it. */
enum openvrex_result openvrex_init(struct openvrex *device, uint32_t (*read)(void *, uint32_t),
                                   void (*write)(void *, uint32_t, uint32_t), void *bus);

/* Set what stays. Not while a program runs. */
enum openvrex_result openvrex_configure(const struct openvrex *device, const struct openvrex_config *config);

/* Which events reach the pin. */
void openvrex_enable(const struct openvrex *device, uint32_t events);

/* Write a program, from its first instruction on. Not while one runs. */
enum openvrex_result openvrex_load(const struct openvrex *device, const uint32_t *program, size_t instructions);

/* Set R[number]. Not while a program runs. */
enum openvrex_result openvrex_set(const struct openvrex *device, unsigned number, uint64_t value);

/* Load the frame's program, set its registers, forget earlier events, start. */
enum openvrex_result openvrex_submit(const struct openvrex *device, const struct openvrex_frame *frame);

/* How it stands. */
struct openvrex_status openvrex_poll(const struct openvrex *device);

/* Poll until no program runs: OK, FAULT, or TIMEOUT after so many polls. */
enum openvrex_result openvrex_wait(const struct openvrex *device, uint32_t polls);

/* For the interrupt's handler: clear what is pending; which events it was, 0 if the interrupt was another device's. */
uint32_t openvrex_interrupt(const struct openvrex *device);

/* Ask for a reset, and poll until it is done: it waits for the program's end and for what the bus owes. Configuration
 * and interrupts stay; program, R registers, clusters, maps and counters are to be made anew. */
enum openvrex_result openvrex_reset(const struct openvrex *device, uint32_t polls);

/* A register by its offset. */
uint32_t openvrex_read(const struct openvrex *device, uint32_t offset);

#ifdef __cplusplus
}
#endif

#endif
