#include "openvrex.h"

#define AT(member) ((uint32_t)offsetof(core_ip_t, member))
#define INSTRUCTIONS (sizeof(((core_ip_t *)0)->program.mem) / (4 * OPENVREX_WORDS))
#define REGISTERS (sizeof(((core_ip_t *)0)->registers.mem) / 8)

static void put(const struct openvrex *device, uint32_t offset, uint32_t value)
{
    device->write(device->bus, offset, value);
}

enum openvrex_result openvrex_load(const struct openvrex *device, const uint32_t *program, size_t instructions)
{
    size_t i;
    if (instructions > INSTRUCTIONS)
        return OPENVREX_RANGE;
    if (openvrex_quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    for (i = 0; i < instructions * OPENVREX_WORDS; i++)
        put(device, AT(program) + 4 * (uint32_t)i, program[i]);
    return OPENVREX_OK;
}

enum openvrex_result openvrex_set(const struct openvrex *device, unsigned number, uint64_t value)
{
    if (number >= REGISTERS)
        return OPENVREX_RANGE;
    if (openvrex_quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    openvrex_write_wide(device, AT(registers) + 8 * number, value);
    return OPENVREX_OK;
}

enum openvrex_result openvrex_submit(const struct openvrex *device, const struct openvrex_frame *frame)
{
    enum openvrex_result result = openvrex_quiet(device);
    unsigned i;
    if (result == OPENVREX_OK && openvrex_poll(device).code > OPENVREX_CODE_DONE)
        result = OPENVREX_FAULT;
    if (result == OPENVREX_OK && frame->program)
        result = openvrex_load(device, frame->program, frame->instructions);
    for (i = 0; i < REGISTERS && result == OPENVREX_OK; i++)
        if (frame->set >> i & 1)
            result = openvrex_set(device, i, frame->registers[i]);
    if (result != OPENVREX_OK)
        return result;
    (void)openvrex_interrupt(device); /* drop the events of an earlier program that was polled */
    put(device, AT(control), CORE_IP__CONTROL__START_bm);
    return OPENVREX_OK;
}
