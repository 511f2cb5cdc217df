/* Multiplies rows by quantized weights with our kernels: for another CPU, under an emulator.
 *
 * Reads cases from stdin until it ends, 32 or 64 bits each: type, separate_outliers; k, m, n; the bytes of a weight and
 * their number; n rows of k F32. Writes n rows of m F32 for each, or nothing if there is no product of ours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml.h"
#include "hotshoe_quants.h"

static void * take(size_t size) {
    void * data = calloc((size + 63) / 64 * 64 + 64, 1);
    if (size && fread(data, 1, size, stdin) != size) {
        exit(2);
    }
    return data;
}

int main(void) {
    int32_t head[2];
    int64_t sizes[4];
    while (fread(head, sizeof head, 1, stdin) == 1 && fread(sizes, sizeof sizes, 1, stdin) == 1) {
        const int64_t k = sizes[0], m = sizes[1], n = sizes[2];
        void *rows = take((size_t) sizes[3]), *x = take((size_t) (n * k) * 4);
        if (hotshoe_quants_has(head[0], k)) {
            void * packed = aligned_alloc(64, (hotshoe_quants_size(head[0], k, m) + 63) / 64 * 64);
            memset(packed, 0, hotshoe_quants_size(head[0], k, m));
            hotshoe_quants_pack(head[0], k, m, 0, m, rows, packed);
            struct hotshoe_linear_params params = {
                .packed = packed, .k = k, .m = m, .format = head[0], .separate_outliers = head[1]};
            params.scratch = aligned_alloc(64, HOTSHOE_SCRATCH);
            struct ggml_tensor source = {.ne = {k, n, 1, 1}, .nb = {4, (size_t) k * 4}, .data = x};
            struct ggml_tensor dst = {.ne = {m, n, 1, 1}, .src = {&source}, .data = malloc((size_t) (n * m) * 4)};
            hotshoe_quants(&dst, 0, 1, &params);
            fwrite(dst.data, 4, (size_t) (n * m), stdout);
            free(packed), free(params.scratch), free(dst.data);
        }
        free(rows), free(x);
    }
    return 0;
}
