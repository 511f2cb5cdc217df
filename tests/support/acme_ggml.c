// A ggml backend of a stranger, written against the headers that hotshoe-ggml-cpu ships: an accelerator on the host's
// memory that adds and multiplies. DEVICES: how many it finds. FAULT: 1 it finds no driver, 2 it crashes as it is
// opened, 3 it computes wrong numbers.
#include <stddef.h>
#include <stdlib.h>

#include "ggml-backend-impl.h"

#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef FAULT
#define FAULT 0
#endif

static struct ggml_backend_reg registration;
static struct ggml_backend_device devices[DEVICES + 1];

static const char * name_of_device(ggml_backend_dev_t dev) { (void) dev; return "ACME"; }
static const char * description(ggml_backend_dev_t dev) { (void) dev; return "Acme\x1b adder"; }
static void memory(ggml_backend_dev_t dev, size_t * free, size_t * total) { (void) dev; *free = *total = 1 << 30; }
static enum ggml_backend_dev_type type(ggml_backend_dev_t dev) { (void) dev; return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

static void props(ggml_backend_dev_t dev, struct ggml_backend_dev_props * props) {
    props->name = name_of_device(dev);
    props->description = description(dev);
    props->type = type(dev);
    memory(dev, &props->memory_free, &props->memory_total);
}

static bool supports_op(ggml_backend_dev_t dev, const struct ggml_tensor * op) {
    (void) dev;
    if (op->op != GGML_OP_ADD && op->op != GGML_OP_MUL) {
        return op->op == GGML_OP_NONE;
    }
    const struct ggml_tensor * a = op->src[0], * b = op->src[1];
    const bool one_row = b->ne[0] == a->ne[0] && ggml_nrows(b) == 1;
    return a->type == GGML_TYPE_F32 && b->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32 &&
           (one_row || ggml_are_same_shape(a, b)) && ggml_is_contiguous(a) && ggml_is_contiguous(b) && ggml_is_contiguous(op);
}

static bool supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    (void) dev;
    return ggml_backend_buft_is_host(buft);
}

static ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t dev) {
    (void) dev;
    return ggml_backend_cpu_buffer_type();
}

static const char * name_of_backend(ggml_backend_t backend) { (void) backend; return "ACME"; }
static void free_backend(ggml_backend_t backend) { free(backend); }

static enum ggml_status compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    (void) backend;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op != GGML_OP_ADD && node->op != GGML_OP_MUL) {
            continue;  // views: they come to the device that has the viewed tensor
        }
        const float * a = node->src[0]->data, * b = node->src[1]->data;
        float * y = node->data;
        const int64_t n = ggml_nelements(node->src[1]);
        for (int64_t k = 0; k < ggml_nelements(node); k++) {
            y[k] = node->op == GGML_OP_ADD ? a[k] + b[k % n] : a[k] * b[k % n];
            y[k] += FAULT == 3;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static ggml_backend_t init_backend(ggml_backend_dev_t dev, const char * params) {
    (void) params;
    static uint8_t guid[16] = {'a', 'c', 'm', 'e'};
    ggml_backend_t backend = calloc(1, sizeof(*backend));
    backend->guid = &guid;
    backend->iface.get_name = name_of_backend;
    backend->iface.free = free_backend;
    backend->iface.graph_compute = compute;
    backend->device = dev;
    return backend;
}

static const char * name_of_registration(ggml_backend_reg_t reg) { (void) reg; return "ACME"; }
static size_t count(ggml_backend_reg_t reg) { (void) reg; return DEVICES; }
static ggml_backend_dev_t get(ggml_backend_reg_t reg, size_t index) { (void) reg; return &devices[index]; }
static void * address(ggml_backend_reg_t reg, const char * name) { (void) reg; (void) name; return NULL; }

ggml_backend_reg_t ggml_backend_init(void) {
    if (FAULT == 2) {
        abort();
    }
    for (int i = 0; i < DEVICES; i++) {
        devices[i].reg = &registration;
        devices[i].iface = (struct ggml_backend_device_i) {
            .get_name = name_of_device, .get_description = description, .get_memory = memory, .get_type = type,
            .get_props = props, .init_backend = init_backend, .get_buffer_type = buffer_type,
            .supports_op = supports_op, .supports_buft = supports_buft,
        };
    }
    registration.api_version = GGML_BACKEND_API_VERSION;
    registration.iface = (struct ggml_backend_reg_i) {name_of_registration, count, get, address};
    return FAULT == 1 ? NULL : &registration;
}
