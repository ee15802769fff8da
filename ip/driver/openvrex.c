#include "openvrex.h"

#define AT(member) ((uint32_t)offsetof(core_ip_t, member))
#define FIELD(word, name) (((word) & name##_bm) >> name##_bp)
#define INSTRUCTIONS (sizeof(((core_ip_t *)0)->program.mem) / (4 * OPENVREX_WORDS))
#ifdef CORE_IP__DEVICE_BASE__HIGH_bm
#define ADDRESSES (CORE_IP__DEVICE_BASE__HIGH_bm | CORE_IP__DEVICE_BASE__LOW_bm) /* all bits of an address */
#else
#define ADDRESSES CORE_IP__DEVICE_BASE__LOW_bm
#endif
#define REGISTERS (sizeof(((core_ip_t *)0)->registers.mem) / 8)

static void put(const struct openvrex *device, uint32_t offset, uint32_t value)
{
    device->write(device->bus, offset, value);
}

static void put_wide(const struct openvrex *device, uint32_t offset, uint64_t value)
{
    put(device, offset, (uint32_t)value);
    put(device, offset + 4, (uint32_t)(value >> 32)); /* the upper half sets an R register */
}

uint32_t openvrex_read(const struct openvrex *device, uint32_t offset)
{
    return device->read(device->bus, offset);
}

enum openvrex_result openvrex_init(struct openvrex *device, uint32_t (*read)(void *, uint32_t),
                                   void (*write)(void *, uint32_t, uint32_t), void *bus)
{
    uint32_t version;
    device->read = read;
    device->write = write;
    device->bus = bus;
    if (openvrex_read(device, AT(identity.magic)) != CORE_IP__IDENTITY__MAGIC__VALUE_reset)
        return OPENVREX_NO_DEVICE;
    version = openvrex_read(device, AT(identity.version));
    if (FIELD(version, CORE_IP__IDENTITY__VERSION__MAJOR) != CORE_IP__IDENTITY__VERSION__MAJOR_reset
        || (int)FIELD(version, CORE_IP__IDENTITY__VERSION__MINOR) < CORE_IP__IDENTITY__VERSION__MINOR_reset)
        return OPENVREX_VERSION;
    if (openvrex_read(device, AT(identity.contexts)) != CORE_IP__IDENTITY__CONTEXTS__VALUE_reset
        || openvrex_read(device, AT(identity.clusters)) != CORE_IP__IDENTITY__CLUSTERS__VALUE_reset
        || openvrex_read(device, AT(identity.entry_bytes)) != CORE_IP__IDENTITY__ENTRY_BYTES__VALUE_reset
        || openvrex_read(device, AT(identity.word_bytes)) != CORE_IP__IDENTITY__WORD_BYTES__VALUE_reset
        || openvrex_read(device, AT(identity.tables)) != CORE_IP__IDENTITY__TABLES__VALUE_reset)
        return OPENVREX_PARAMETERS;
    openvrex_enable(device, 0);
    (void)openvrex_interrupt(device);
    return OPENVREX_OK;
}

/* OK if the core takes writes, else BUSY. */
static enum openvrex_result quiet(const struct openvrex *device)
{
    struct openvrex_status status = openvrex_poll(device);
    return status.code == OPENVREX_CODE_RUNNING || status.resets ? OPENVREX_BUSY : OPENVREX_OK;
}

enum openvrex_result openvrex_configure(const struct openvrex *device, const struct openvrex_config *config)
{
    if (config->th_hd > CORE_IP__TH_HD__VALUE_bm || config->ratio > 65536u
        || config->device_base > ADDRESSES || config->home_base > ADDRESSES
        || config->table_base > ADDRESSES || config->table_base % 4096u
        || config->blocks < 1 || config->blocks > CORE_IP__BLOCKS__VALUE_reset)
        return OPENVREX_RANGE;
    if (quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    put(device, AT(th_hd), config->th_hd);
    put(device, AT(ratio), config->ratio);
    put_wide(device, AT(device_base), config->device_base);
    put_wide(device, AT(home_base), config->home_base);
    put_wide(device, AT(table_base), config->table_base);
    put(device, AT(blocks), config->blocks);
    return OPENVREX_OK;
}

void openvrex_enable(const struct openvrex *device, uint32_t events)
{
    put(device, AT(irq_enable), events & (OPENVREX_DONE | OPENVREX_FAULTED | OPENVREX_CORRECTED));
}

enum openvrex_result openvrex_load(const struct openvrex *device, const uint32_t *program, size_t instructions)
{
    size_t i;
    if (instructions > INSTRUCTIONS)
        return OPENVREX_RANGE;
    if (quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    for (i = 0; i < instructions * OPENVREX_WORDS; i++)
        put(device, AT(program) + 4 * (uint32_t)i, program[i]);
    return OPENVREX_OK;
}

enum openvrex_result openvrex_set(const struct openvrex *device, unsigned number, uint64_t value)
{
    if (number >= REGISTERS)
        return OPENVREX_RANGE;
    if (quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    put_wide(device, AT(registers) + 8 * number, value);
    return OPENVREX_OK;
}

enum openvrex_result openvrex_submit(const struct openvrex *device, const struct openvrex_frame *frame)
{
    enum openvrex_result result = quiet(device);
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

struct openvrex_status openvrex_poll(const struct openvrex *device)
{
    uint32_t word = openvrex_read(device, AT(status));
    struct openvrex_status status;
    status.code = (enum openvrex_code)FIELD(word, CORE_IP__STATUS__CODE);
    status.engines = FIELD(word, CORE_IP__STATUS__ENGINES);
    status.bus = FIELD(word, CORE_IP__STATUS__BUS);
    status.resets = FIELD(word, CORE_IP__STATUS__RESETS);
    status.pc = FIELD(word, CORE_IP__STATUS__PC);
    return status;
}

enum openvrex_result openvrex_wait(const struct openvrex *device, uint32_t polls)
{
    while (polls--) {
        enum openvrex_code code = openvrex_poll(device).code;
        if (code != OPENVREX_CODE_RUNNING)
            return code > OPENVREX_CODE_DONE ? OPENVREX_FAULT : OPENVREX_OK;
    }
    return OPENVREX_TIMEOUT;
}

uint32_t openvrex_interrupt(const struct openvrex *device)
{
    uint32_t events = openvrex_read(device, AT(irq));
    if (events)
        put(device, AT(irq), events); /* events that come in between stay pending */
    return events;
}

enum openvrex_result openvrex_reset(const struct openvrex *device, uint32_t polls)
{
    put(device, AT(control), CORE_IP__CONTROL__RESET_bm);
    while (polls--)
        if (!openvrex_poll(device).resets)
            return OPENVREX_OK;
    return OPENVREX_TIMEOUT;
}
