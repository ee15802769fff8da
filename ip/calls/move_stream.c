#include <stdio.h>
#include "openvrex_checkpoint.h"

static int to_file(void *file, const void *bytes, size_t count) { return fwrite(bytes, 1, count, file) != count; }
static int from_file(void *file, void *bytes, size_t count) { return fread(bytes, 1, count, file) != count; }

/* Layers 0 to n - 1 of a stream have contexts `from` and up on one core, `to` and up on the other. */
enum openvrex_result move_stream(const struct openvrex *one, const struct openvrex *two,
                                 const struct openvrex_memory *memory, uint32_t from, uint32_t to, uint32_t n, FILE *file)
{
    enum openvrex_result result = OPENVREX_OK;
    uint32_t i;

    for (i = 0; i < n && result == OPENVREX_OK; i++)
        result = openvrex_save(one, memory, from + i, to_file, file);
    rewind(file);
    for (i = 0; i < n && result == OPENVREX_OK; i++)
        result = openvrex_restore(two, memory, to + i, from_file, file, 1000000);
    return result;
}
