/* Packs the weights of a model part by part, with the pages that they need. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "hotshoe_packing.h"

#include <stdint.h>

#include "hotshoe_linear.h"
#include "hotshoe_quants.h"
#include "isa.h"
#include "tensor_rows.h"

#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <errno.h>
#include <time.h>
#endif

#if defined(HOTSHOE_X86) || defined(HOTSHOE_ARM)

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

static uintptr_t round_up(uintptr_t address, uintptr_t to) { return (address + to - 1) / to * to; }

/* Threads may lose each other's changes of the two numbers: that is one page more or less. */
int hotshoe_skips_page(struct hotshoe_pages * p) {
    const int32_t n = LOAD(p->n_to_skip);
    if (n > 0) {
        STORE(p->n_to_skip, n - 1);
    }
    return n > 0;
}

void hotshoe_page_took(struct hotshoe_pages * p, int64_t nanoseconds) {
    if (nanoseconds > p->fast) {
        const int32_t n = LOAD(p->next_skip);
        STORE(p->n_to_skip, n);
        STORE(p->next_skip, n < INT32_MAX / 2 ? 2 * n : n);
    }
}

#if defined(_WIN32)

void hotshoe_release_pages(const void * data, int64_t size) { (void) data, (void) size; }

#else

void hotshoe_release_pages(const void * data, int64_t size) {
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), first = (uintptr_t) data;
    const uintptr_t start = round_up(first, page), stop = (first + (uintptr_t) size) / page * page;
    if (start < stop) {
        madvise((void *) start, stop - start, MADV_DONTNEED);
    }
}

#endif

#if defined(__linux__)

enum { LARGE = 2 << 20, POPULATE_WRITE = 23 /* MADV_POPULATE_WRITE of Linux 5.14 */ };

static int64_t thread_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

void hotshoe_request_pages(struct hotshoe_pages * p, int64_t start, int64_t stop) {
    if (!LOAD(p->is_on)) {
        return;
    }
    const uintptr_t memory = (uintptr_t) p->start, end = (uintptr_t) p->stop, first_large = round_up(memory, LARGE);
    /* The thread that writes the first byte of a page requests it. */
    for (uintptr_t page = round_up(memory + (uintptr_t) start, LARGE); page < memory + (uintptr_t) stop;
         page += LARGE) {
        const size_t size = end - page < LARGE ? end - page : LARGE;
        const int is_large = size == LARGE && !hotshoe_skips_page(p);
        const int64_t before = thread_nanoseconds();
        if (is_large) {
            madvise((void *) page, size, MADV_HUGEPAGE);
        }
        if (madvise((void *) page, size, POPULATE_WRITE) && errno == EINVAL) { /* an older kernel */
            STORE(p->is_on, 0);
            return;
        }
        if (is_large) {
            p->is_large[(page - first_large) / LARGE] = 1;
            hotshoe_page_took(p, thread_nanoseconds() - before);
        }
    }
}

#else

void hotshoe_request_pages(struct hotshoe_pages * p, int64_t start, int64_t stop) {
    (void) p, (void) start, (void) stop;
}

#endif

static int64_t parts_of_matrix(const struct hotshoe_pack_job * job) { return ceil_div(job->m, job->rows_at_once); }

/* The job with this part. */
static struct hotshoe_pack_job * job_with(const struct hotshoe_packing * p, int64_t part) {
    int64_t low = 0, high = p->n_jobs;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        *(p->jobs[middle].first_part <= part ? &low : &high) = middle;
    }
    return p->jobs + low;
}

/* Packs n rows of a matrix. */
static void pack_part(const struct hotshoe_pack_job * job, int64_t first, int64_t n, const char * rows, void * packed) {
    if (job->is_dense) {
        hotshoe_pack_rows(job->format, job->type, job->k, job->m, first, n, rows, packed);
    } else {
        hotshoe_quants_pack(job->format, job->k, job->m, first, n, rows, packed);
    }
}

int64_t hotshoe_pack(struct hotshoe_packing * p, int64_t max_parts) {
    int64_t n_read = 0;
    for (int64_t i = 0; i < max_parts && !LOAD(p->is_paused); ++i) {
        const int64_t part = __atomic_fetch_add(&p->next_part, 1, __ATOMIC_RELAXED);
        if (part >= p->n_parts) {
            STORE(p->next_part, p->n_parts);
            break;
        }
        struct hotshoe_pack_job * job = job_with(p, part);
        const int64_t parts = parts_of_matrix(job), matrix = (part - job->first_part) / parts;
        const int64_t first = (part - job->first_part) % parts * job->rows_at_once;
        const int64_t n = min64(job->rows_at_once, job->m - first), size = n * job->row_bytes;
        const char * rows = (const char *) job->rows + (matrix * job->m + first) * job->row_bytes;
        char * packed = (char *) job->packed + matrix * job->matrix_bytes;
        const int64_t start = packed - (char *) p->pages->start;
        hotshoe_request_pages(p->pages, start + first * job->matrix_bytes / job->m,
                              start + (first + n) * job->matrix_bytes / job->m);
        pack_part(job, first, n, rows, packed);
        if (job->is_mapped) {
            hotshoe_release_pages(rows, size);
        }
        n_read += size;
        __atomic_sub_fetch(&job->n_left, 1, __ATOMIC_ACQ_REL);
    }
    return n_read;
}

#else /* no kernels for this CPU or compiler, and so no packed weights */

int hotshoe_skips_page(struct hotshoe_pages * p) {
    (void) p;
    return 0;
}

void hotshoe_page_took(struct hotshoe_pages * p, int64_t nanoseconds) { (void) p, (void) nanoseconds; }

void hotshoe_release_pages(const void * data, int64_t size) { (void) data, (void) size; }

void hotshoe_request_pages(struct hotshoe_pages * p, int64_t start, int64_t stop) {
    (void) p, (void) start, (void) stop;
}

int64_t hotshoe_pack(struct hotshoe_packing * packing, int64_t max_parts) {
    (void) packing, (void) max_parts;
    return 0;
}

#endif
