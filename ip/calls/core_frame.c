#include "openvrex.h"

static uint32_t reg_read(void *bus, uint32_t offset)
{
    return ((volatile uint32_t *)bus)[offset / 4];
}

static void reg_write(void *bus, uint32_t offset, uint32_t value)
{
    ((volatile uint32_t *)bus)[offset / 4] = value;
}

/* A frame: a program, as `vrex asm` gives it, its weights, rings and inputs already in memory. */
int run_frame(void *base, const uint32_t *program, size_t instructions, uint64_t hidden, uint32_t *executed)
{
    struct openvrex core;
    struct openvrex_config config = {3, 13107, 0x10000000, 0x20000000, 0x18000000, 4096, 32, 0}; /* 32 contexts */
    struct openvrex_frame frame = {0};
    enum openvrex_result result = openvrex_init(&core, reg_read, reg_write, base);

    if (result == OPENVREX_OK)
        result = openvrex_reset(&core, 1000000);
    if (result == OPENVREX_OK)
        result = openvrex_configure(&core, &config);
    frame.program = program;
    frame.instructions = instructions;
    frame.registers[1] = hidden;
    frame.set = 1u << 1;
    if (result == OPENVREX_OK)
        result = openvrex_submit(&core, &frame);
    if (result == OPENVREX_OK)
        result = openvrex_wait(&core, 1000000000);
    if (result == OPENVREX_FAULT)
        (void)openvrex_reset(&core, 1000000); /* openvrex_poll(&core) says which fault, and at which instruction */
    *executed = OPENVREX_READ(&core, perf.lxe.sequencer.instructions);
    return result;
}
