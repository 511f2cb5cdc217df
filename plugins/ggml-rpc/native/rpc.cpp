// ggml's RPC client, with failures as errors.
//
// In ggml, a server that is gone aborts the process that uses it. Here GGML_ABORT throws, every function that ggml-base
// or a caller may enter catches the exception, and hotshoe_backend_failure tells what happened: a step on a lost server
// is an error like any other (see guarded.hpp).

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

static void note_failure(const char * endpoint, const char * why);
// Threads take turns on a connection: a request and its answer belong together.
#define GUARDED_SCOPE(first) const std::lock_guard<std::recursive_mutex> in_turn(turn_of(endpoint_of(first)));
static std::recursive_mutex & turn_of(const std::string & endpoint);
static std::string endpoint_of(const char * endpoint) { return endpoint; }
static std::string endpoint_of(struct ggml_backend_device * device);
static std::string endpoint_of(struct ggml_backend * backend);
static std::string endpoint_of(struct ggml_backend_buffer_type * type);
static std::string endpoint_of(struct ggml_backend_buffer * buffer);
#include "guarded.hpp"

#include "transport.h"

static std::shared_ptr<socket_t> require_socket(const std::string & endpoint);
static void (*rpc_free_buffer)(ggml_backend_buffer_t); // by this function ggml recognizes RPC's buffers
static bool is_on_this_server(ggml_backend_buffer_t buffer);

#include "ggml-rpc-checked.cpp" // ggml-rpc.cpp with these functions in place of its own: see CMakeLists.txt

static thread_local const socket_t * computing_on = nullptr;

// A graph is sent with all sources of its nodes, including tensors that other servers computed. A server must not get
// the addresses of those.
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

// A server: the connection in use, and the connections that were lost. A lost connection is never used again, although
// buffers that hold it live on. The next use of the server connects again, and finds it if it was restarted.
struct server {
    std::recursive_mutex turn;
    std::weak_ptr<socket_t> sock;
    uint64_t failures = 0;                         // lost connections
    std::string why;                               // reason of the last loss
    std::unordered_map<std::string, size_t> sizes; // by description: the sizes that the server told
};
static std::mutex servers_mutex;
static std::map<std::string, server> servers;

// The caller holds the server's turn, so that one thread connects. Others may use other servers meanwhile.
static std::shared_ptr<socket_t> require_socket(const std::string & endpoint) {
    std::unique_lock<std::mutex> lock(servers_mutex);
    auto & known = servers[endpoint].sock;
    if (auto sock = known.lock()) {
        return sock;
    }
    lock.unlock(); // a server that is silent takes seconds
    const size_t colon = endpoint.rfind(':');
    std::string host = endpoint.substr(0, colon);
    if (host.front() == '[') { // IPv6
        host = host.substr(1, host.size() - 2);
    }
    try {
        rpc_transport_init();
        const auto sock = socket_t::connect(host.c_str(), std::stoi(endpoint.substr(colon + 1)));
        if (!negotiate_hello(sock)) {
            throw backend_failure("it has another version of the protocol");
        }
        lock.lock();
        known = sock;
        servers[endpoint].sizes.clear();
        return sock;
    } catch (const std::exception & error) {
        throw backend_failure("no server answers at " + endpoint + ": " + error.what());
    }
}

// The bytes of a tensor on which the size that it takes depends, as does that of its readers.
static void describe(std::string & bytes, const ggml_tensor * tensor) {
    bytes += tensor == nullptr ? '-' : tensor->view_src == nullptr ? 'o' : 'v';
    if (tensor != nullptr) {
        const auto add = [&bytes](const auto & field) { bytes.append((const char *) &field, sizeof field); };
        add(tensor->type), add(tensor->op), add(tensor->ne), add(tensor->nb), add(tensor->op_params);
    }
}

// ggml asks the server for the sizes of some tensors, several times for each graph: 7 ms of the host for 32 layers. An
// answer is kept as long as the connection.
static size_t ask_alloc_size(ggml_backend_buffer_type_t type, const ggml_tensor * tensor) {
    const bool may_ask =
        tensor->op == GGML_OP_FLASH_ATTN_EXT || tensor->op == GGML_OP_MUL_MAT_ID || ggml_is_quantized(tensor->type);
    if (!may_ask || tensor->buffer != nullptr) {
        return ggml_backend_rpc_buffer_type_get_alloc_size(type, tensor);
    }
    const auto & context = *(const ggml_backend_rpc_buffer_type_context *) type->context;
    std::string key = std::to_string(context.device);
    describe(key, tensor);
    for (const ggml_tensor * source : tensor->src) {
        describe(key, source);
    }
    const auto sock = require_socket(context.endpoint); // a new connection knows no sizes
    std::unique_lock<std::mutex> lock(servers_mutex);
    auto & sizes = servers[context.endpoint].sizes;
    if (const auto known = sizes.find(key); known != sizes.end()) {
        return known->second;
    }
    lock.unlock();
    const size_t size = ggml_backend_rpc_buffer_type_get_alloc_size(type, tensor);
    lock.lock();
    if (sizes.size() > 10000) {
        sizes.clear();
    }
    sizes[key] = size;
    return size;
}

// ggml plans on if the server is lost, and ends the process if an op in place is larger than its source, so not 0.
static size_t get_alloc_size(ggml_backend_buffer_type_t type, const ggml_tensor * tensor) {
    try {
        return ask_alloc_size(type, tensor);
    } catch (const std::exception & error) {
        note_failure(type, error.what());
        return ggml_nbytes(tensor);
    }
}

bool greets(const socket_ptr & sock) { return negotiate_hello(sock); }

// Notes the loss of a server's connection. sock: the connection that failed, or NULL if the failed object has none. The
// failure of an earlier connection says nothing about the current one.
static void note(const std::string & endpoint, const socket_t * sock, const char * why) {
    std::lock_guard<std::mutex> lock(servers_mutex);
    server & known = servers[endpoint];
    if (sock == nullptr || sock == known.sock.lock().get()) {
        known.sock.reset();
        known.failures++;
        known.why = why;
    }
}

static std::string endpoint_of(ggml_backend_dev_t device) {
    return ((ggml_backend_rpc_device_context *) device->context)->endpoint;
}
static std::string endpoint_of(ggml_backend_t backend) {
    return ((ggml_backend_rpc_context *) backend->context)->endpoint;
}
static std::string endpoint_of(ggml_backend_buffer_type_t type) {
    return ((ggml_backend_rpc_buffer_type_context *) type->context)->endpoint;
}
static std::string endpoint_of(ggml_backend_buffer_t buffer) { return endpoint_of(buffer->buft); }

static void note_failure(const char * endpoint, const char * why) { note(endpoint, nullptr, why); }
static void note_failure(ggml_backend_dev_t device, const char * why) { note(endpoint_of(device), nullptr, why); }
static void note_failure(ggml_backend_t backend, const char * why) { note(endpoint_of(backend), nullptr, why); }
static void note_failure(ggml_backend_buffer_type_t type, const char * why) { note(endpoint_of(type), nullptr, why); }
static void note_failure(ggml_backend_buffer_t buffer, const char * why) {
    note(endpoint_of(buffer), ((ggml_backend_rpc_buffer_context *) buffer->context)->sock.get(), why);
}

static std::recursive_mutex & turn_of(const std::string & endpoint) {
    std::lock_guard<std::mutex> lock(servers_mutex);
    return servers[endpoint].turn;
}

static void free_buffer(ggml_backend_buffer_t buffer) {
    GUARDED_SCOPE(buffer)
    try {
        ggml_backend_rpc_buffer_free_buffer(buffer);
    } catch (const std::exception & error) { // the server no longer has it
        note_failure(buffer, error.what());
        delete (ggml_backend_rpc_buffer_context *) buffer->context;
    }
}

// Sets *failures to the number of lost connections to this server. Returns why the last one was lost, or NULL if none
// was. The text is valid until the thread's next call.
static const char * hotshoe_backend_failure(const char * endpoint, uint64_t * failures) {
    static thread_local std::string why;
    std::lock_guard<std::mutex> lock(servers_mutex);
    const server & known = servers[endpoint];
    *failures = known.failures;
    why = known.why;
    return known.failures == 0 ? nullptr : why.c_str();
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

// Serves one client until its connection ends. fd: the socket. A damaged message ends only this connection. A graph
// with invalid ops can end the process: the CPU's kernels abort.
static void hotshoe_rpc_serve(int fd, size_t n_backends, ggml_backend_t * backends) {
    try {
        rpc_serve_client({backends, backends + n_backends}, nullptr, socket_t::create_server(nullptr, fd));
    } catch (const std::exception & error) {
        GGML_LOG_DEBUG("a client's connection ended: %s\n", error.what());
    }
}

static void * get_proc_address(ggml_backend_reg_t reg, const char * name) {
    if (std::string(name) == "hotshoe_rpc_serve") {
        return (void *) hotshoe_rpc_serve;
    }
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
    buffer.free_buffer = rpc_free_buffer = free_buffer;
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
    type.get_alloc_size = guarded<get_alloc_size>::call;
    ggml_backend_rpc_interface.graph_compute = guarded<graph_compute>::call;
    ggml_backend_reg_t reg = ggml_backend_rpc_reg();
    reg->iface.get_proc_address = get_proc_address;
    return reg;
}
