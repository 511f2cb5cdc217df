/* Packs the weights of a model, in as many threads as call hotshoe_pack: without Python's lock, which threads that run
 * Python hold for milliseconds. */
#ifndef HOTSHOE_PACKING_H
#define HOTSHOE_PACKING_H

#include "hotshoe_kernels.h"

/* The pages of the memory that weights are packed into: see hotshoe_request_pages. */
struct hotshoe_pages {
    void *start, *stop; /* of the memory */
    uint8_t * is_large; /* a number for each page of 2 MiB, from the first multiple of 2 MiB on: 1 if it is large */
    int64_t fast;       /* nanoseconds that a large page may take */
    int32_t is_on;      /* 0: nothing is requested */
    int32_t n_to_skip;  /* pages that will not be large, because one was slow */
    int32_t next_skip;  /* as many after the next slow one */
};

/* Requests the pages of the bytes from `start` to `stop`, before they are written. Several threads may call it. Linux
 * provides many small pages at once in two thirds of the time that it needs for them one by one, as they are written.
 * Large pages take a third of that time if they are free. If Linux must make room for one, or a host must provide it
 * first, they take five times as long: after such a page the next 8 are small, then 16, 32 and so on. On other systems
 * it does nothing. */
HOTSHOE_API void hotshoe_request_pages(struct hotshoe_pages * pages, int64_t start, int64_t stop);

/* Whether the next page is one of those that stay small, after a slow one. It counts them. */
HOTSHOE_API int hotshoe_skips_page(struct hotshoe_pages * pages);

/* Says how long a large page took. */
HOTSHOE_API void hotshoe_page_took(struct hotshoe_pages * pages, int64_t nanoseconds);

/* Releases the whole pages of a part of a mapped file: the system reads them again when they are needed. On Windows it
 * does nothing. */
HOTSHOE_API void hotshoe_release_pages(const void * data, int64_t size);

/* A weight (m, k), or several of them, one after the other. */
struct hotshoe_pack_job {
    const void * rows; /* as a file has them */
    void * packed;     /* part of pages, zeroed */
    int64_t k, m, n_matrices;
    int64_t row_bytes, matrix_bytes; /* of a row in the file, and of a packed matrix */
    int64_t rows_at_once;            /* rows of a part, a multiple of 32 */
    int64_t first_part;              /* the parts of all jobs before */
    int64_t n_left;                  /* parts that are not packed yet */
    int32_t format;                  /* enum ggml_type for hotshoe_quants_pack, or enum hotshoe_linear_format */
    int32_t type;                    /* enum ggml_type of `rows`; only if is_dense */
    int32_t is_dense;                /* whether it is for hotshoe_pack_rows */
    int32_t is_mapped;               /* whether `rows` are pages of a file, to be released after they were read */
};

/* All jobs of a model. Parts are packed in their order. */
struct hotshoe_packing {
    struct hotshoe_pack_job * jobs;
    struct hotshoe_pages * pages;
    int64_t n_jobs, n_parts;
    int64_t next_part; /* 0 at first */
    int32_t is_paused; /* 1: no thread begins another part */
};

/* Packs at most `max_parts` parts, until none is left or packing is paused. Several threads may call it. Returns the
 * number of bytes that were read. */
HOTSHOE_API int64_t hotshoe_pack(struct hotshoe_packing * packing, int64_t max_parts);

#endif
