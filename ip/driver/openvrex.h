/* Driver of an OpenVRex core in C99: openvrex_block.h, and programs. */
#ifndef OPENVREX_H
#define OPENVREX_H

#include "openvrex_block.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPENVREX_WORDS 8u

/* A program and its initial registers. */
struct openvrex_frame {
    const uint32_t *program; /* OPENVREX_WORDS words an instruction, lowest first; NULL: keep the loaded program */
    size_t instructions;
    uint64_t registers[16]; /* R0 to R15 */
    uint32_t set;           /* bit i: set R[i]; other registers keep their values */
};

/* Write a program, from its first instruction on. BUSY while a program runs. */
enum openvrex_result openvrex_load(const struct openvrex *device, const uint32_t *program, size_t instructions);

/* Set R[number]. BUSY while a program runs. */
enum openvrex_result openvrex_set(const struct openvrex *device, unsigned number, uint64_t value);

/* Load the frame's program, set its registers, clear earlier events, and start. */
enum openvrex_result openvrex_submit(const struct openvrex *device, const struct openvrex_frame *frame);

#ifdef __cplusplus
}
#endif

#endif
