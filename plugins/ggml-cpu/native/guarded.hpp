// Turns failures of a ggml backend into errors that the caller gets.
//
// ggml ends the process if a device fails, and throws exceptions through functions in C. A file that includes this
// header, and after it a source file of ggml, replaces that: GGML_ABORT throws in ggml's file, and ggml-base gets
// `guarded<function>::call` in place of each function. It catches exceptions, passes their text to `note_failure`, and
// returns nothing, zero or GGML_STATUS_FAILED. The including file defines `note_failure` for the types that a function
// may have first, and ggml_backend_init, which ggml would define by a macro.
#pragma once

#include "ggml.h"
#include "ggml-backend-impl.h"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <type_traits>

#undef GGML_ABORT
#define GGML_ABORT(...) throw_failure(__VA_ARGS__)
#undef GGML_BACKEND_DL_IMPL
#define GGML_BACKEND_DL_IMPL(reg)

static void note_failure(ggml_backend_dev_t device, const char * why);
static void note_failure(ggml_backend_t backend, const char * why);
static void note_failure(ggml_backend_buffer_type_t type, const char * why);
static void note_failure(ggml_backend_buffer_t buffer, const char * why);

struct backend_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] static void throw_failure(const char * what) { throw backend_failure(what); }
template <typename... T> [[noreturn]] static void throw_failure(const char * what, T... values) {
    char text[512];
    std::snprintf(text, sizeof text, what, values...);
    throw backend_failure(text);
}

#ifndef GUARDED_SCOPE // what a call holds as long as it lasts
#define GUARDED_SCOPE(first)
#endif

template <auto function> struct guarded;

template <typename R, typename T, typename... A, R (*function)(T, A...)> struct guarded<function> {
    static R call(T first, A... arguments) {
        GUARDED_SCOPE(first)
        try {
            return function(first, arguments...);
        } catch (const std::exception & error) {
            note_failure(first, error.what());
            if constexpr (std::is_same_v<R, enum ggml_status>) {
                return GGML_STATUS_FAILED;
            } else if constexpr (!std::is_void_v<R>) {
                return R{};
            }
        }
    }
};
