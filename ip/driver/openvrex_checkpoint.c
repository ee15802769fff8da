#include "openvrex_checkpoint.h"

#define AT(member) ((uint32_t)offsetof(core_ip_t, member))
#define CLUSTERS CORE_IP__IDENTITY__CLUSTERS__VALUE_reset
#define ENTRY_BYTES ((uint64_t)CORE_IP__IDENTITY__ENTRY_BYTES__VALUE_reset)
#define BLOCK_SLOTS CORE_IP_TABLES__BLOCK_SLOTS
#ifdef CORE_IP_TABLES__KV4_GROUP /* 4 bits a number at home instead of 16 */
#define HOME_BYTES (ENTRY_BYTES / 4)
#define ENTRY_WORD ((uint32_t)ENTRY_BYTES | (uint32_t)CORE_IP_TABLES__KV4_GROUP << 24)
#else
#define HOME_BYTES ENTRY_BYTES
#define ENTRY_WORD ((uint32_t)ENTRY_BYTES)
#endif
#define BLOCK_BYTES (HOME_BYTES * BLOCK_SLOTS)
#define HEADER 16u /* bytes */
#define MOST 128u  /* bytes of the longest item */
#define PART 512u  /* bytes of a copy at most */

/* A field of an item. */
#define GET(word, field) get_bits(word, CORE_IP_TABLES__##field##_bp, CORE_IP_TABLES__##field##_bw)
#define SET(word, field, value) set_bits(word, CORE_IP_TABLES__##field##_bp, CORE_IP_TABLES__##field##_bw, value)

struct item {
    uint32_t offset, bytes, bits, checks;
    const uint8_t *columns; /* the checks of each bit */
    int shared;             /* in the pool */
};

#define ITEM(name, columns, shared) \
    {CORE_IP_TABLES__##name##__OFFSET, CORE_IP_TABLES__##name##__BYTES, CORE_IP_TABLES__##name##__BITS, \
     CORE_IP_TABLES__##name##__CHECKS, columns, shared}

static const uint8_t level_columns[] = CORE_IP_TABLES__LEVEL__COLUMNS;
static const uint8_t place_columns[] = CORE_IP_TABLES__PLACE__COLUMNS;
static const uint8_t row_columns[] = CORE_IP_TABLES__ROW__COLUMNS;
static const uint8_t next_columns[] = CORE_IP_TABLES__NEXT__COLUMNS;
static const uint8_t pool_columns[] = CORE_IP_TABLES__POOL__COLUMNS;
static const struct item level_item = ITEM(LEVEL, level_columns, 0);
static const struct item place_item = ITEM(PLACE, place_columns, 0);
static const struct item row_item = ITEM(ROW, row_columns, 0);
static const struct item next_item = ITEM(NEXT, next_columns, 1);
static const struct item pool_item = ITEM(POOL, pool_columns, 1);
static const struct item ring_item = ITEM(RING, NULL, 0);
static const struct item hash_item = ITEM(HASH, NULL, 0);
static const struct item count_item = ITEM(COUNT, NULL, 0);

/* A save or a restore. After the first failure it reads and writes nothing more. */
struct job {
    const struct openvrex_memory *memory;
    int (*put)(void *, const void *, size_t); /* of a save */
    int (*get)(void *, void *, size_t);       /* of a restore */
    void *file;
    uint64_t pool, table, ring, home; /* first bytes */
    uint32_t blocks;                  /* of the pool */
    uint32_t levels, slots;           /* the context's clusters, its entries in the ring */
    enum openvrex_result result;      /* the first failure */
};

/* The pool's record. */
struct pool {
    uint32_t fresh, head, tail, freed;
};

static uint32_t get_bits(const uint8_t *word, uint32_t at, uint32_t count)
{
    uint32_t i, value = 0;
    for (i = 0; i < count; i++)
        value |= (uint32_t)(word[(at + i) / 8] >> (at + i) % 8 & 1) << i;
    return value;
}

static void set_bits(uint8_t *word, uint32_t at, uint32_t count, uint32_t value)
{
    uint32_t i;
    for (i = 0; i < count; i++) {
        uint8_t bit = (uint8_t)(1u << (at + i) % 8);
        word[(at + i) / 8] &= (uint8_t)~bit;
        if (value >> i & 1)
            word[(at + i) / 8] |= bit;
    }
}

static void fail(struct job *job, enum openvrex_result result)
{
    if (job->result == OPENVREX_OK)
        job->result = result;
}

/* The check bits of an item's data. */
static uint32_t checks_of(const struct item *item, const uint8_t *word)
{
    uint32_t i, checks = 0;
    for (i = 0; i < item->bits; i++)
        if (get_bits(word, i, 1))
            checks ^= item->columns[i];
    return checks;
}

/* Correct an item, or fail. */
static void check(struct job *job, const struct item *item, uint8_t *word, enum openvrex_result failure)
{
    uint32_t i, syndrome = checks_of(item, word) ^ get_bits(word, item->bits, item->checks);
    if (!syndrome)
        return;
    if (CORE_IP_TABLES__CORRECTS && !(syndrome & (syndrome - 1)))
        return; /* a check bit is wrong */
    for (i = 0; CORE_IP_TABLES__CORRECTS && i < item->bits; i++)
        if (item->columns[i] == syndrome) {
            set_bits(word, i, 1, !get_bits(word, i, 1));
            return;
        }
    fail(job, failure);
}

static void seal(const struct item *item, uint8_t *word)
{
    set_bits(word, item->bits, item->checks, checks_of(item, word));
}

static void zero(uint8_t *word)
{
    uint32_t i;
    for (i = 0; i < MOST; i++)
        word[i] = 0;
}

static uint64_t address(const struct job *job, const struct item *item, uint32_t index)
{
    return (item->shared ? job->pool : job->table) + item->offset + (uint64_t)index * item->bytes;
}

/* An item of memory; zeros after a failure. */
static void read_item(struct job *job, const struct item *item, uint32_t index, uint8_t *word)
{
    zero(word);
    if (job->result != OPENVREX_OK)
        return;
    job->memory->read(job->memory->memory, address(job, item, index), word, item->bytes);
    check(job, item, word, OPENVREX_MEMORY);
}

static void write_item(struct job *job, const struct item *item, uint32_t index, uint8_t *word)
{
    seal(item, word);
    if (job->result == OPENVREX_OK)
        job->memory->write(job->memory->memory, address(job, item, index), word, item->bytes);
}

/* Bytes to the checkpoint, or from it. */
static void transfer(struct job *job, uint8_t *bytes, size_t count)
{
    if (job->result != OPENVREX_OK)
        return;
    if (job->put ? job->put(job->file, bytes, count) : job->get(job->file, bytes, count))
        fail(job, OPENVREX_FILE);
}

/* Bytes of memory to the checkpoint, or from it. */
static void copy(struct job *job, uint64_t from, uint64_t count)
{
    uint8_t bytes[PART];
    while (count && job->result == OPENVREX_OK) {
        size_t part = count < PART ? (size_t)count : PART;
        if (job->put)
            job->memory->read(job->memory->memory, from, bytes, part);
        transfer(job, bytes, part);
        if (!job->put && job->result == OPENVREX_OK)
            job->memory->write(job->memory->memory, from, bytes, part);
        from += part;
        count -= part;
    }
}

static void copy_items(struct job *job, const struct item *item, uint32_t count)
{
    copy(job, address(job, item, 0), (uint64_t)count * item->bytes);
}

/* The block behind a block; fails when `left` is used up, as no chain is longer than the pool. */
static uint32_t next(struct job *job, uint32_t block, uint32_t *left)
{
    uint8_t word[MOST];
    if (!*left || block >= job->blocks)
        fail(job, OPENVREX_MEMORY);
    *left -= *left != 0;
    read_item(job, &next_item, block, word);
    return GET(word, NEXT__BLOCK);
}

/* The entries of the ring, and of all clusters at home. */
static void copy_entries(struct job *job)
{
    uint8_t row[MOST];
    uint32_t cluster;
    copy(job, job->ring, job->slots * ENTRY_BYTES);
    for (cluster = 0; cluster < job->levels && job->result == OPENVREX_OK; cluster++) {
        uint32_t block, off, left = job->blocks;
        read_item(job, &row_item, cluster, row);
        block = GET(row, ROW__HEAD);
        off = GET(row, ROW__OFF);
        while (block != off && job->result == OPENVREX_OK) {
            copy(job, job->home + block * BLOCK_BYTES, BLOCK_BYTES);
            block = next(job, block, &left);
        }
        copy(job, job->home + block * BLOCK_BYTES, GET(row, ROW__OFF_SLOTS) * HOME_BYTES);
    }
}

/* Numbers the blocks of a cluster's row from `first` on; returns the number behind its last. */
static uint32_t number_blocks(struct job *job, uint8_t *row, uint32_t first)
{
    uint32_t block = GET(row, ROW__HEAD), off = GET(row, ROW__OFF), tail = GET(row, ROW__TAIL), left = job->blocks;
    int found = 0;
    if (!GET(row, ROW__TAIL_SLOTS))
        return first;
    SET(row, ROW__HEAD, first);
    for (;; first++) {
        if (block == off) {
            SET(row, ROW__OFF, first);
            found = 1;
        }
        if (block == tail || job->result != OPENVREX_OK)
            break;
        block = next(job, block, &left);
    }
    if (!found)
        fail(job, OPENVREX_MEMORY);
    SET(row, ROW__TAIL, first);
    seal(&row_item, row);
    return first + 1;
}

static void put_word(uint8_t *bytes, uint32_t value)
{
    uint32_t i;
    for (i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

/* The entries in the ring. */
static void read_place(struct job *job, const uint8_t *word, enum openvrex_result failure)
{
    job->slots = GET(word, PLACE__FILLED) ? CORE_IP_TABLES__RECENT : GET(word, PLACE__POS);
    if (GET(word, PLACE__POS) >= CORE_IP_TABLES__RECENT)
        fail(job, failure);
}

static uint64_t read_wide(const struct openvrex *device, uint32_t offset)
{
    return openvrex_read(device, offset) | (uint64_t)openvrex_read(device, offset + 4) << 32;
}

/* Begins a job on an idle device. */
static void begin(struct job *job, const struct openvrex *device, const struct openvrex_memory *memory, uint32_t ctx,
                  void *file)
{
    struct openvrex_status status = openvrex_poll(device);
    job->memory = memory;
    job->file = file;
    job->put = NULL;
    job->get = NULL;
    job->result = OPENVREX_OK;
    if (ctx >= openvrex_read(device, AT(contexts)))
        fail(job, OPENVREX_RANGE);
    if (status.code == OPENVREX_CODE_RUNNING || status.bus || status.resets)
        fail(job, OPENVREX_BUSY);
    if (status.code > OPENVREX_CODE_DONE)
        fail(job, OPENVREX_FAULT);
    if (status.engines) /* a program has left its FETCH */
        fail(job, OPENVREX_BUSY);
    job->pool = read_wide(device, AT(table_base));
    job->table = job->pool + CORE_IP_TABLES__POOL_BYTES + (uint64_t)ctx * CORE_IP_TABLES__TABLE_BYTES;
    job->ring = read_wide(device, AT(device_base)) + ENTRY_BYTES * CORE_IP_TABLES__RECENT * ctx;
    job->home = read_wide(device, AT(home_base));
    job->blocks = openvrex_read(device, AT(blocks));
}

enum openvrex_result openvrex_save(const struct openvrex *device, const struct openvrex_memory *memory, uint32_t ctx,
                                   int (*put)(void *file, const void *bytes, size_t count), void *file)
{
    struct job job;
    uint8_t word[MOST];
    uint32_t cluster, blocks = 0;
    begin(&job, device, memory, ctx, file);
    job.put = put;
    read_item(&job, &level_item, 0, word);
    job.levels = GET(word, LEVEL__CLUSTERS);
    if (job.levels > CLUSTERS)
        fail(&job, OPENVREX_MEMORY);
    for (cluster = 0; cluster < job.levels && job.result == OPENVREX_OK; cluster++) {
        read_item(&job, &row_item, cluster, word);
        blocks = number_blocks(&job, word, blocks);
    }
    put_word(word, CORE_IP_TABLES__CHECKSUM);
    put_word(word + 4, ENTRY_WORD);
    put_word(word + 8, job.levels);
    put_word(word + 12, blocks);
    transfer(&job, word, HEADER);
    read_item(&job, &place_item, 0, word);
    read_place(&job, word, OPENVREX_MEMORY);
    seal(&place_item, word);
    transfer(&job, word, place_item.bytes);
    copy_items(&job, &ring_item, job.slots);
    copy_items(&job, &hash_item, job.levels);
    copy_items(&job, &count_item, job.levels);
    blocks = 0;
    for (cluster = 0; cluster < job.levels && job.result == OPENVREX_OK; cluster++) {
        read_item(&job, &row_item, cluster, word);
        blocks = number_blocks(&job, word, blocks);
        transfer(&job, word, row_item.bytes);
    }
    copy_entries(&job);
    return job.result;
}

static void read_pool(struct job *job, struct pool *pool)
{
    uint8_t word[MOST];
    read_item(job, &pool_item, 0, word);
    pool->fresh = GET(word, POOL__FRESH);
    pool->head = GET(word, POOL__FREE_HEAD);
    pool->tail = GET(word, POOL__FREE_TAIL);
    pool->freed = GET(word, POOL__FREED);
    if (pool->fresh > job->blocks)
        fail(job, OPENVREX_MEMORY);
}

static void write_pool(struct job *job, const struct pool *pool)
{
    uint8_t word[MOST];
    zero(word);
    SET(word, POOL__FRESH, pool->fresh);
    SET(word, POOL__FREE_HEAD, pool->head);
    SET(word, POOL__FREE_TAIL, pool->tail);
    SET(word, POOL__FREED, pool->freed);
    write_item(job, &pool_item, 0, word);
}

/* A free block, as the KVMU takes it: an unused one, else the one that was freed first. Fails where there is none. */
static uint32_t take(struct job *job, struct pool *pool)
{
    uint32_t block = pool->head, left = 1;
    if (pool->fresh < job->blocks)
        return pool->fresh++;
    if (!pool->freed) {
        fail(job, OPENVREX_FULL);
        return 0;
    }
    pool->freed = pool->head != pool->tail;
    pool->head = pool->freed ? next(job, block, &left) : 0;
    pool->tail = pool->freed ? pool->tail : 0;
    return block;
}

/* Gives the blocks of a cluster's row in the checkpoint, which begin at number `first`, places in memory; returns the
 * number behind the last. A chain of freed blocks keeps its NEXTs, so the pool stays whole until its record changes. */
static uint32_t place_blocks(struct job *job, struct pool *pool, uint8_t *row, uint32_t first)
{
    uint8_t word[MOST];
    uint32_t head = GET(row, ROW__HEAD), off = GET(row, ROW__OFF), tail = GET(row, ROW__TAIL), before = 0;
    if (!GET(row, ROW__TAIL_SLOTS))
        return first;
    if (head != first || off < head || tail < off || GET(row, ROW__OFF_SLOTS) > BLOCK_SLOTS
        || GET(row, ROW__TAIL_SLOTS) > BLOCK_SLOTS)
        fail(job, OPENVREX_CHECKPOINT);
    for (; first <= tail && job->result == OPENVREX_OK; first++) {
        uint32_t block = take(job, pool);
        if (first != head) {
            zero(word);
            SET(word, NEXT__BLOCK, block);
            write_item(job, &next_item, before, word);
        } else {
            SET(row, ROW__HEAD, block);
        }
        if (first == off)
            SET(row, ROW__OFF, block);
        before = block;
    }
    SET(row, ROW__TAIL, before);
    return tail + 1;
}

static uint32_t word_of(const uint8_t *bytes)
{
    return get_bits(bytes, 0, 32);
}

/* Checks the header: this device's layout, and enough free blocks. Returns their number. */
static uint32_t read_header(struct job *job, const struct pool *pool)
{
    uint8_t word[MOST];
    uint32_t blocks, block = pool->head, left = job->blocks, found = job->blocks - pool->fresh + pool->freed;
    zero(word);
    transfer(job, word, HEADER);
    job->levels = word_of(word + 8);
    blocks = word_of(word + 12);
    if (word_of(word) != CORE_IP_TABLES__CHECKSUM || word_of(word + 4) != ENTRY_WORD || job->levels > CLUSTERS)
        fail(job, OPENVREX_CHECKPOINT);
    for (; found < blocks && pool->freed && block != pool->tail && job->result == OPENVREX_OK; found++)
        block = next(job, block, &left);
    if (found < blocks)
        fail(job, OPENVREX_FULL);
    return blocks;
}

enum openvrex_result openvrex_restore(const struct openvrex *device, const struct openvrex_memory *memory, uint32_t ctx,
                                      int (*get)(void *file, void *bytes, size_t count), void *file, uint32_t polls)
{
    struct job job;
    struct pool pool;
    uint8_t word[MOST], place[MOST];
    uint32_t cluster, blocks, number = 0, rows = 0;
    begin(&job, device, memory, ctx, file);
    job.get = get;
    read_item(&job, &level_item, 0, word);
    read_item(&job, &place_item, 0, place);
    if (GET(word, LEVEL__CLUSTERS) || GET(place, PLACE__POS) || GET(place, PLACE__FILLED))
        fail(&job, OPENVREX_USED);
    read_pool(&job, &pool);
    blocks = read_header(&job, &pool);
    zero(place);
    transfer(&job, place, place_item.bytes);
    check(&job, &place_item, place, OPENVREX_CHECKPOINT);
    read_place(&job, place, OPENVREX_CHECKPOINT);
    copy_items(&job, &ring_item, job.slots);
#if CORE_IP_TABLES__KEPT
    zero(word); /* no block of the context is kept */
    for (cluster = 0; cluster < CORE_IP_TABLES__KEPT && job.result == OPENVREX_OK; cluster++)
        write_item(&job, &ring_item, CORE_IP_TABLES__RECENT + cluster, word);
#endif
    copy_items(&job, &hash_item, job.levels);
    copy_items(&job, &count_item, job.levels);
    for (; rows < job.levels && job.result == OPENVREX_OK; rows++) {
        zero(word);
        transfer(&job, word, row_item.bytes);
        check(&job, &row_item, word, OPENVREX_CHECKPOINT);
        number = place_blocks(&job, &pool, word, number);
        if (number > blocks)
            fail(&job, OPENVREX_CHECKPOINT);
        write_item(&job, &row_item, rows, word);
    }
    copy_entries(&job);
    write_item(&job, &place_item, 0, place);
    zero(word);
    SET(word, LEVEL__CLUSTERS, job.levels);
    write_item(&job, &level_item, 0, word);
    write_pool(&job, &pool);
    if (job.result == OPENVREX_OK)
        return openvrex_reset(device, polls);
    zero(word);
    for (cluster = 0; cluster < rows; cluster++) /* rows of an empty context are zero */
        memory->write(memory->memory, address(&job, &row_item, cluster), word, row_item.bytes);
    return job.result;
}
