#include "openvrex_block.h"

#define AT(member) ((uint32_t)offsetof(core_ip_t, member))
#define FIELD(word, name) (((word) & name##_bm) >> name##_bp)
#ifdef CORE_IP__DEVICE_BASE__HIGH_bm
#define ADDRESSES (CORE_IP__DEVICE_BASE__HIGH_bm | CORE_IP__DEVICE_BASE__LOW_bm) /* all bits of an address */
#else
#define ADDRESSES CORE_IP__DEVICE_BASE__LOW_bm
#endif

static void put(const struct openvrex *device, uint32_t offset, uint32_t value)
{
    device->write(device->bus, offset, value);
}

void openvrex_write_wide(const struct openvrex *device, uint32_t offset, uint64_t value)
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

enum openvrex_result openvrex_quiet(const struct openvrex *device)
{
    struct openvrex_status status = openvrex_poll(device);
    return status.code == OPENVREX_CODE_RUNNING || status.resets ? OPENVREX_BUSY : OPENVREX_OK;
}

enum openvrex_result openvrex_configure(const struct openvrex *device, const struct openvrex_config *config)
{
    const uint32_t word = CORE_IP__IDENTITY__WORD_BYTES__VALUE_reset;
    if (config->th_hd > CORE_IP__TH_HD__VALUE_bm || config->ratio > 65536u
        || config->device_base > ADDRESSES || config->home_base > ADDRESSES
        || config->table_base > ADDRESSES || config->table_base % 4096u
        || config->device_base % word || config->home_base % word
        || config->blocks < 1 || config->blocks > CORE_IP__BLOCKS__VALUE_reset
        || config->contexts > CORE_IP__CONTEXTS__VALUE_reset)
        return OPENVREX_RANGE;
    if (openvrex_quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    put(device, AT(th_hd), config->th_hd);
    if (openvrex_read(device, AT(th_hd)) != config->th_hd) /* more than the hash bits + 1: the block keeps the old one */
        return OPENVREX_RANGE;
    put(device, AT(ratio), config->ratio);
    openvrex_write_wide(device, AT(device_base), config->device_base);
    openvrex_write_wide(device, AT(home_base), config->home_base);
    openvrex_write_wide(device, AT(table_base), config->table_base);
    put(device, AT(blocks), config->blocks);
    put(device, AT(contexts), config->contexts);
    put(device, AT(watchdog), config->watchdog);
    return OPENVREX_OK;
}

#ifdef CORE_IP__CONFINE__ON_bm
#define REGIONS (sizeof(((core_ip_t *)0)->region) / sizeof(((core_ip_t *)0)->region[0]))
#define OF_REGION(k, member) (AT(region) + (uint32_t)(k) * (uint32_t)sizeof(((core_ip_t *)0)->region[0]) + (member))

enum openvrex_result openvrex_confine(const struct openvrex *device, const struct openvrex_region *regions, unsigned n)
{
    const uint64_t all = (uint64_t)1 << 40;
    unsigned k;
    if (n > REGIONS)
        return OPENVREX_RANGE;
    for (k = 0; k < n; k++)
        if (regions[k].first % 4096u || regions[k].bytes % 4096u || !regions[k].bytes || regions[k].first >= all
            || regions[k].bytes > all - regions[k].first || regions[k].allow > 63u)
            return OPENVREX_RANGE;
    if (openvrex_quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    for (k = 0; k < REGIONS; k++) {
        put(device, OF_REGION(k, AT(region[0].allow) - AT(region[0])), k < n ? regions[k].allow : 0);
        if (k < n) {
            openvrex_write_wide(device, OF_REGION(k, 0), regions[k].first);
            openvrex_write_wide(device, OF_REGION(k, AT(region[0].last) - AT(region[0])),
                                regions[k].first + regions[k].bytes - 4096u);
        }
    }
    put(device, AT(confine), n ? CORE_IP__CONFINE__ON_bm : 0);
    return OPENVREX_OK;
}

int openvrex_refused(const struct openvrex *device, struct openvrex_refused *first)
{
    uint32_t burst = openvrex_read(device, AT(refused.burst));
    first->manager = FIELD(burst, CORE_IP__REFUSED__BURST__PORT);
    first->write = FIELD(burst, CORE_IP__REFUSED__BURST__WRITE);
    first->page = (uint64_t)openvrex_read(device, AT(refused.page)) << 12;
    return (int)FIELD(burst, CORE_IP__REFUSED__BURST__VALID);
}
#else /* a block without regions reaches everything */
enum openvrex_result openvrex_confine(const struct openvrex *device, const struct openvrex_region *regions, unsigned n)
{
    (void)device;
    (void)regions;
    return n ? OPENVREX_RANGE : OPENVREX_OK;
}

int openvrex_refused(const struct openvrex *device, struct openvrex_refused *first)
{
    (void)device;
    (void)first;
    return 0;
}
#endif

enum openvrex_result openvrex_share(const struct openvrex *device, uint32_t first, uint32_t end, uint32_t quota)
{
#ifdef CORE_IP__QUOTA__VALUE_bm
    if (first >= end || end > CORE_IP__CONTEXTS__VALUE_reset || quota > CORE_IP__BLOCKS__VALUE_reset)
        return OPENVREX_RANGE;
    if (openvrex_quiet(device) != OPENVREX_OK)
        return OPENVREX_BUSY;
    put(device, AT(first_context), first);
    put(device, AT(contexts), end);
    put(device, AT(quota), quota);
    return OPENVREX_OK;
#else
    (void)device;
    (void)first;
    (void)end;
    (void)quota;
    return OPENVREX_RANGE;
#endif
}

void openvrex_enable(const struct openvrex *device, uint32_t events)
{
    put(device, AT(irq_enable), events & (OPENVREX_DONE | OPENVREX_FAULTED | OPENVREX_CORRECTED));
}

void openvrex_raise(const struct openvrex *device, uint32_t events)
{
    put(device, AT(irq_test), events & (OPENVREX_DONE | OPENVREX_FAULTED | OPENVREX_CORRECTED));
}

struct openvrex_status openvrex_poll(const struct openvrex *device)
{
    uint32_t word = openvrex_read(device, AT(status));
    struct openvrex_status status;
    status.code = (enum openvrex_code)FIELD(word, CORE_IP__STATUS__CODE);
    status.bus = FIELD(word, CORE_IP__STATUS__BUS);
    status.resets = FIELD(word, CORE_IP__STATUS__RESETS);
#ifdef CORE_IP__STATUS__PC_bm
    status.engines = FIELD(word, CORE_IP__STATUS__ENGINES);
    status.pc = FIELD(word, CORE_IP__STATUS__PC);
#else
    status.engines = status.pc = 0;
#endif
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
