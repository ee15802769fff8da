#include "openvrex_mask.h"

/* A coded frame of a stream; *kept: tokens to encode. tau is 0.25 pixels. */
enum openvrex_mask_result mask_frame(const struct openvrex_mask *mask, uint32_t width, uint32_t height, uint32_t blocks,
                                     int leads, int encoded, uint32_t *kept)
{
    struct openvrex_mask_frame frame = {0};
    enum openvrex_mask_result result;

    frame.width = width;
    frame.height = height;
    frame.blocks = blocks;
    frame.threshold = 1; /* floor((4 * 0.25)^2) */
    frame.leads = leads != 0;
    frame.take = encoded != 0;
    frame.accumulate = 1;
    result = openvrex_mask_start(mask, &frame);
    if (result == OPENVREX_MASK_OK)
        result = openvrex_mask_wait(mask, 1000000);
    *kept = encoded ? openvrex_mask_kept(mask) : 0;
    return result;
}
