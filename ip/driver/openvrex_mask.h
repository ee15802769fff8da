/* Driver of an OpenVRex motion mask in C99. It needs no library, and no memory beyond `struct openvrex_mask`.
 *
 * motion_mask_ip.h describes the registers; it is generated with the block. The caller provides two access functions, so
 * that the same code runs on bare metal, on Linux over UIO and in a simulator. Accesses have 32 bits and keep program
 * order. The decoder sends the blocks of each frame on a stream; the mask leaves on another one.
 *
 * One thread uses a device at a time. An interrupt handler may call openvrex_mask_interrupt at any time.
 */
#ifndef OPENVREX_MASK_H
#define OPENVREX_MASK_H

#include <stddef.h>
#include <stdint.h>

#include "motion_mask_ip.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Results of the functions. */
enum openvrex_mask_result {
    OPENVREX_MASK_OK = 0,
    OPENVREX_MASK_NO_DEVICE = -1,  /* there is no such block */
    OPENVREX_MASK_VERSION = -2,    /* its registers have another MAJOR than motion_mask_ip.h, or an older MINOR */
    OPENVREX_MASK_PARAMETERS = -3, /* its parameters differ from those of motion_mask_ip.h */
    OPENVREX_MASK_RANGE = -4,      /* an argument does not fit its register */
    OPENVREX_MASK_BUSY = -5,       /* a frame is in work, or a reset is pending */
    OPENVREX_MASK_FAULT = -6,      /* a frame ended with a fault: call openvrex_mask_reset */
    OPENVREX_MASK_TIMEOUT = -7     /* the polls did not suffice */
};

/* Interrupts: bits of `events`. */
enum openvrex_mask_event {
    OPENVREX_MASK_DONE = MOTION_MASK_IP__IRQ__DONE_bm,
    OPENVREX_MASK_FAULTED = MOTION_MASK_IP__IRQ__FAULT_bm
};

struct openvrex_mask {
    uint32_t (*read)(void *bus, uint32_t offset);
    void (*write)(void *bus, uint32_t offset, uint32_t value);
    void *bus; /* first argument of both */
};

/* A coded frame. */
struct openvrex_mask_frame {
    uint32_t width, height; /* of the picture, in pixels */
    uint32_t blocks;        /* with a motion vector, all of which the decoder sends */
    uint32_t threshold;     /* floor((4 tau)^2) for tau pixels; of a block with residuals 64 tau */
    uint32_t weight;        /* of residuals: 1024 alpha times the pixels of a patch */
    uint32_t leads;         /* 1: it begins a GOP */
    uint32_t take;          /* 1: it is encoded, so it gets a mask */
    uint32_t accumulate;    /* 1: patches that move stay in the masks until the GOP ends */
};

/* Check that the block is the one that motion_mask_ip.h describes, disable interrupts and clear pending ones. Call
 * openvrex_mask_reset next: the block may hold an earlier state. */
enum openvrex_mask_result openvrex_mask_init(struct openvrex_mask *device, uint32_t (*read)(void *, uint32_t),
                                             void (*write)(void *, uint32_t, uint32_t), void *bus);

/* Choose the events that reach the interrupt pin. */
void openvrex_mask_enable(const struct openvrex_mask *device, uint32_t events);

/* Start a frame. RANGE for one that the registers cannot hold, BUSY and FAULT as above; then nothing is written. */
enum openvrex_mask_result openvrex_mask_start(const struct openvrex_mask *device,
                                              const struct openvrex_mask_frame *frame);

/* Poll until no frame is in work, its mask taken. Returns OK, FAULT, or TIMEOUT after `polls` polls. */
enum openvrex_mask_result openvrex_mask_wait(const struct openvrex_mask *device, uint32_t polls);

/* Visual tokens that the last mask keeps. */
uint32_t openvrex_mask_kept(const struct openvrex_mask *device);

/* For the interrupt handler: clear the pending events and return them; 0 if another device raised the interrupt. */
uint32_t openvrex_mask_interrupt(const struct openvrex_mask *device);

/* Request a reset, and poll until it is done: the block waits until a mask on offer is taken. */
enum openvrex_mask_result openvrex_mask_reset(const struct openvrex_mask *device, uint32_t polls);

#ifdef __cplusplus
}
#endif

#endif
