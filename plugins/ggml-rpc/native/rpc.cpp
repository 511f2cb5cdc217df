// ggml's RPC client, whose failures come back as failures.
//
// As ggml has it, a server that is gone aborts the process that uses it. Here GGML_ABORT throws in that file, every
// function that ggml-base or a caller may enter catches it, and hotshoe_backend_failure says what happened: a step on a
// lost server is an error like any other.

#include "ggml.h"
#include "ggml-backend-impl.h"

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>

struct rpc_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] static void rpc_fail(const char * what) { throw rpc_failure(what); }
template <typename... T> [[noreturn]] static void rpc_fail(const char * what, T...) { throw rpc_failure(what); }

#undef GGML_ABORT
#define GGML_ABORT(...) rpc_fail(__VA_ARGS__)
#undef GGML_BACKEND_DL_IMPL
#define GGML_BACKEND_DL_IMPL(reg)

#include "transport.h"

static std::shared_ptr<socket_t> require_socket(const std::string & endpoint);
static void (*rpc_free_buffer)(ggml_backend_buffer_t); // by which ggml knows a buffer of RPC's
static bool is_on_this_server(ggml_backend_buffer_t buffer);

#include "ggml-rpc-checked.cpp" // ggml-rpc.cpp, with these in the place of its own: see CMakeLists.txt

static thread_local const socket_t * computing_on = nullptr;

// A graph is sent with all that its nodes come from, also what other servers computed: of that a server gets no address.
static bool is_on_this_server(ggml_backend_buffer_t buffer) {
    if (!ggml_backend_buffer_is_rpc(buffer)) {
        return false;
    }
    const auto * context = (const ggml_backend_rpc_buffer_context *) buffer->context;
    return computing_on == nullptr || context == nullptr || context->sock.get() == computing_on;
}

static enum ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * cgraph) {
    struct scope {
        explicit scope(const socket_t * sock) { computing_on = sock; }
        ~scope() { computing_on = nullptr; }
    };
    const auto sock = require_socket(((ggml_backend_rpc_context *) backend->context)->endpoint);
    const scope on(sock.get());
    return ggml_backend_rpc_graph_compute(backend, cgraph);
}

static std::shared_ptr<socket_t> require_socket(const std::string & endpoint) {
    auto sock = get_socket(endpoint);
    if (sock == nullptr) {
        throw rpc_failure("no server answers at " + endpoint);
    }
    return sock;
}

static std::mutex failure_mutex;
static std::string failure;

static void note(const char * what) {
    std::lock_guard<std::mutex> lock(failure_mutex);
    failure = what;
}

template <auto function> struct guarded;

template <typename R, typename... A, R (*function)(A...)> struct guarded<function> {
    static R call(A... arguments) {
        try {
            return function(arguments...);
        } catch (const std::exception & error) {
            note(error.what());
            if constexpr (std::is_same_v<R, enum ggml_status>) {
                return GGML_STATUS_FAILED;
            } else if constexpr (!std::is_void_v<R>) {
                return R{};
            }
        }
    }
};

// What the last failed call met, once; NULL if none failed since. The text stays until the next call.
static const char * hotshoe_backend_failure(void) {
    static std::string told;
    std::lock_guard<std::mutex> lock(failure_mutex);
    if (failure.empty()) {
        return nullptr;
    }
    told.swap(failure);
    failure.clear();
    return told.c_str();
}

static ggml_backend_dev_t guard(ggml_backend_dev_t device) {
    device->iface.get_memory = guarded<ggml_backend_rpc_device_get_memory>::call;
    device->iface.get_props = guarded<ggml_backend_rpc_device_get_props>::call;
    device->iface.init_backend = guarded<ggml_backend_rpc_device_init>::call;
    device->iface.get_buffer_type = guarded<ggml_backend_rpc_device_get_buffer_type>::call;
    return device;
}

static void * get_proc_address(ggml_backend_reg_t reg, const char * name);

static ggml_backend_reg_t add_server(const char * endpoint) {
    ggml_backend_reg_t reg = guarded<ggml_backend_rpc_add_server>::call(endpoint);
    if (reg != nullptr) {
        reg->iface.get_proc_address = get_proc_address;
        for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); ++i) {
            guard(ggml_backend_reg_dev_get(reg, i));
        }
    }
    return reg;
}

static void * get_proc_address(ggml_backend_reg_t reg, const char * name) {
    if (std::string(name) == "hotshoe_backend_failure") {
        return (void *) hotshoe_backend_failure;
    }
    if (std::string(name) == "ggml_backend_rpc_add_server") {
        return (void *) add_server;
    }
    return ggml_backend_rpc_get_proc_address(reg, name);
}

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    auto & buffer = ggml_backend_rpc_buffer_interface;
    buffer.free_buffer = rpc_free_buffer = guarded<ggml_backend_rpc_buffer_free_buffer>::call;
    buffer.get_base = guarded<ggml_backend_rpc_buffer_get_base>::call;
    buffer.init_tensor = guarded<ggml_backend_rpc_buffer_init_tensor>::call;
    buffer.memset_tensor = guarded<ggml_backend_rpc_buffer_memset_tensor>::call;
    buffer.set_tensor = guarded<ggml_backend_rpc_buffer_set_tensor>::call;
    buffer.get_tensor = guarded<ggml_backend_rpc_buffer_get_tensor>::call;
    buffer.cpy_tensor = guarded<ggml_backend_rpc_buffer_cpy_tensor>::call;
    buffer.clear = guarded<ggml_backend_rpc_buffer_clear>::call;
    auto & type = ggml_backend_rpc_buffer_type_interface;
    type.alloc_buffer = guarded<ggml_backend_rpc_buffer_type_alloc_buffer>::call;
    type.get_alignment = guarded<ggml_backend_rpc_buffer_type_get_alignment>::call;
    type.get_max_size = guarded<ggml_backend_rpc_get_max_size>::call;
    type.get_alloc_size = guarded<ggml_backend_rpc_buffer_type_get_alloc_size>::call;
    ggml_backend_rpc_interface.graph_compute = guarded<graph_compute>::call;
    ggml_backend_reg_t reg = ggml_backend_rpc_reg();
    reg->iface.get_proc_address = get_proc_address;
    return reg;
}
