#include "openvrex_mask.h"

#define AT(member) ((uint32_t)offsetof(motion_mask_ip_t, member))
#define FIELD(word, name) (((word) & MOTION_MASK_IP__##name##_bm) >> MOTION_MASK_IP__##name##_bp)
#define FITS(value, name) ((value) <= MOTION_MASK_IP__##name##_bm >> MOTION_MASK_IP__##name##_bp)
#define RUNNING 1u
#define DONE 2u

static uint32_t get(const struct openvrex_mask *device, uint32_t offset)
{
    return device->read(device->bus, offset);
}

static void put(const struct openvrex_mask *device, uint32_t offset, uint32_t value)
{
    device->write(device->bus, offset, value);
}

enum openvrex_mask_result openvrex_mask_init(struct openvrex_mask *device, uint32_t (*read)(void *, uint32_t),
                                             void (*write)(void *, uint32_t, uint32_t), void *bus)
{
    uint32_t version;
    device->read = read;
    device->write = write;
    device->bus = bus;
    if (get(device, AT(identity.magic)) != MOTION_MASK_IP__IDENTITY__MAGIC__VALUE_reset)
        return OPENVREX_MASK_NO_DEVICE;
    version = get(device, AT(identity.version));
    if (FIELD(version, IDENTITY__VERSION__MAJOR) != MOTION_MASK_IP__IDENTITY__VERSION__MAJOR_reset
        || (int)FIELD(version, IDENTITY__VERSION__MINOR) < MOTION_MASK_IP__IDENTITY__VERSION__MINOR_reset)
        return OPENVREX_MASK_VERSION;
    if (get(device, AT(identity.grid)) != MOTION_MASK_IP__IDENTITY__GRID__VALUE_reset
        || get(device, AT(identity.group)) != MOTION_MASK_IP__IDENTITY__GROUP__VALUE_reset
        || get(device, AT(identity.residuals)) != MOTION_MASK_IP__IDENTITY__RESIDUALS__VALUE_reset)
        return OPENVREX_MASK_PARAMETERS;
    openvrex_mask_enable(device, 0);
    (void)openvrex_mask_interrupt(device);
    return OPENVREX_MASK_OK;
}

void openvrex_mask_enable(const struct openvrex_mask *device, uint32_t events)
{
    put(device, AT(irq_enable), events & (OPENVREX_MASK_DONE | OPENVREX_MASK_FAULTED));
}

enum openvrex_mask_result openvrex_mask_start(const struct openvrex_mask *device,
                                              const struct openvrex_mask_frame *frame)
{
    uint32_t status = get(device, AT(status));
    if (!FITS(frame->width, SIZE__WIDTH) || !FITS(frame->height, SIZE__HEIGHT) || !FITS(frame->blocks, BLOCKS__VALUE)
        || !FITS(frame->threshold, THRESHOLD__VALUE) || !FITS(frame->weight, WEIGHT__VALUE) || frame->leads > 1
        || frame->take > 1 || frame->accumulate > 1)
        return OPENVREX_MASK_RANGE;
    if (FIELD(status, STATUS__CODE) == RUNNING || FIELD(status, STATUS__RESETS))
        return OPENVREX_MASK_BUSY;
    if (FIELD(status, STATUS__CODE) > DONE)
        return OPENVREX_MASK_FAULT;
    put(device, AT(size),
        frame->width << MOTION_MASK_IP__SIZE__WIDTH_bp | frame->height << MOTION_MASK_IP__SIZE__HEIGHT_bp);
    put(device, AT(blocks), frame->blocks);
    put(device, AT(threshold), frame->threshold);
    put(device, AT(weight), frame->weight);
    put(device, AT(frame), frame->leads << MOTION_MASK_IP__FRAME__LEADS_bp
                               | frame->take << MOTION_MASK_IP__FRAME__TAKE_bp
                               | frame->accumulate << MOTION_MASK_IP__FRAME__ACCUMULATE_bp);
    (void)openvrex_mask_interrupt(device); /* drop the events of an earlier frame that was polled */
    put(device, AT(control), MOTION_MASK_IP__CONTROL__START_bm);
    return OPENVREX_MASK_OK;
}

enum openvrex_mask_result openvrex_mask_wait(const struct openvrex_mask *device, uint32_t polls)
{
    while (polls--) {
        uint32_t code = FIELD(get(device, AT(status)), STATUS__CODE);
        if (code != RUNNING)
            return code > DONE ? OPENVREX_MASK_FAULT : OPENVREX_MASK_OK;
    }
    return OPENVREX_MASK_TIMEOUT;
}

uint32_t openvrex_mask_kept(const struct openvrex_mask *device)
{
    return FIELD(get(device, AT(kept)), KEPT__TOKENS);
}

uint32_t openvrex_mask_interrupt(const struct openvrex_mask *device)
{
    uint32_t events = get(device, AT(irq));
    if (events)
        put(device, AT(irq), events); /* events that come in between stay pending */
    return events;
}

enum openvrex_mask_result openvrex_mask_reset(const struct openvrex_mask *device, uint32_t polls)
{
    put(device, AT(control), MOTION_MASK_IP__CONTROL__RESET_bm);
    while (polls--)
        if (!FIELD(get(device, AT(status)), STATUS__RESETS))
            return OPENVREX_MASK_OK;
    return OPENVREX_MASK_TIMEOUT;
}
