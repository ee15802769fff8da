#include "openvrex_dre.h"

#define AT(member) ((uint32_t)offsetof(dre_ip_t, member))

enum openvrex_dre_result openvrex_dre_start(const struct openvrex_dre *device,
                                            const struct openvrex_dre_command *command)
{
    if (command->base >> 40 || command->entries < 1 || command->entries > 65536u || command->shift > 31
        || (uint32_t)command->action > OPENVREX_DRE_BUDGET)
        return OPENVREX_DRE_RANGE;
    if (openvrex_dre_quiet(device) != OPENVREX_DRE_OK)
        return OPENVREX_DRE_BUSY;
    if (openvrex_dre_poll(device).code > OPENVREX_DRE_CODE_DONE)
        return OPENVREX_DRE_FAULT;
    openvrex_dre_write_wide(device, AT(base), command->base);
    device->write(device->bus, AT(rows), command->entries - 1);
    device->write(device->bus, AT(command),
                  (uint32_t)command->action << DRE_IP__COMMAND__ACTION_bp | command->shift << DRE_IP__COMMAND__SHIFT_bp);
    (void)openvrex_dre_interrupt(device); /* drop the events of an earlier command that was polled */
    device->write(device->bus, AT(control), DRE_IP__CONTROL__START_bm);
    return OPENVREX_DRE_OK;
}

static uint64_t read_wide(const struct openvrex_dre *device, uint32_t offset)
{
    uint64_t low = openvrex_dre_read(device, offset);
    return (uint64_t)openvrex_dre_read(device, offset + 4) << 32 | low;
}

enum openvrex_dre_result openvrex_dre_run(const struct openvrex_dre *device, const struct openvrex_dre_command *command,
                                          uint32_t polls, uint64_t *result, uint64_t *count)
{
    enum openvrex_dre_result ended = openvrex_dre_start(device, command);
    if (ended == OPENVREX_DRE_OK)
        ended = openvrex_dre_wait(device, polls);
    if (ended == OPENVREX_DRE_OK && result)
        *result = read_wide(device, AT(result));
    if (ended == OPENVREX_DRE_OK && count)
        *count = read_wide(device, AT(count));
    return ended;
}

enum openvrex_dre_result openvrex_dre_cluster(const struct openvrex_dre *device, uint64_t base, uint32_t shift,
                                              uint32_t polls, uint64_t *row, uint64_t *clusters)
{
    struct openvrex_dre_command command = {OPENVREX_DRE_CLUSTER, 0, 1, 0};
    command.base = base;
    command.shift = shift;
    return openvrex_dre_run(device, &command, polls, row, clusters);
}

enum openvrex_dre_result openvrex_dre_place(const struct openvrex_dre *device, uint64_t base, uint32_t entries,
                                            uint32_t polls)
{
    struct openvrex_dre_command command = {OPENVREX_DRE_PLACE, 0, 1, 0};
    command.base = base;
    command.entries = entries;
    return openvrex_dre_run(device, &command, polls, NULL, NULL);
}

enum openvrex_dre_result openvrex_dre_switch(const struct openvrex_dre *device, uint32_t context, uint32_t polls,
                                             uint64_t *clusters)
{
    struct openvrex_dre_command command = {OPENVREX_DRE_SWITCH, 0, 1, 0};
    command.base = context;
    return openvrex_dre_run(device, &command, polls, NULL, clusters);
}

enum openvrex_dre_result openvrex_dre_fetch(const struct openvrex_dre *device, uint64_t base, uint32_t room,
                                            uint32_t polls, uint64_t *entries)
{
    struct openvrex_dre_command command = {OPENVREX_DRE_FETCH, 0, 1, 0};
    command.base = base;
    command.entries = room;
    return openvrex_dre_run(device, &command, polls, entries, NULL);
}

enum openvrex_dre_result openvrex_dre_clear(const struct openvrex_dre *device, uint32_t context, uint32_t polls)
{
    struct openvrex_dre_command command = {OPENVREX_DRE_CLEAR, 0, 1, 0};
    command.base = context;
    return openvrex_dre_run(device, &command, polls, NULL, NULL);
}
