/* How a product of a few tokens prefetches its weights: chosen while computing, by measurement.
 *
 * One token is multiplied at the memory's speed if the processor is told early enough what it reads next. Which way is
 * the fastest depends on the processor, on the type (how large its blocks are), on the number of tokens (how long
 * computing takes), and on the size of pages: benchmarks/NOTES.md has numbers. So the first products of each type and
 * number of tokens try all ways in turns, and the way with the best median is used. After a gigabyte, then two, four
 * and so on, the ways are tried again, because pages and neighbours change. Results do not depend on the way. */
#ifndef HOTSHOE_PREFETCH_CHOICE_H
#define HOTSHOE_PREFETCH_CHOICE_H

#include <stdint.h>

#include "hotshoe_kernels.h"

/* every_line: prefetch every line `ahead` bytes ahead. 0: one line of each block. The processor itself prefetches a
 * plain order of reads, but only to the end of a page; so that line is one of the next page. */
struct prefetch_way {
    int every_line;
    int64_t ahead;
};

/* One use of a way. If it is a sample, its time is measured. */
struct prefetch_use {
    struct prefetch_way way;
    int64_t bytes;
    int sample;    /* number, or -1 */
    int64_t start; /* nanoseconds */
};

enum { MOST_AT_ONCE = 4 }; /* tokens */

/* Call these before and after `n_tokens` at once are multiplied by so many bytes of weights of a type (enum ggml_type).
 */
struct prefetch_use begin_prefetch(int type, int n_tokens, int64_t bytes);
void end_prefetch(int type, int n_tokens, const struct prefetch_use * use);

#endif
