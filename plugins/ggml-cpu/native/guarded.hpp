// Turns failures of a ggml backend into errors that the caller gets.
//
// ggml ends the process if a device fails, and throws exceptions through functions in C. A file that includes a source
// file of ggml with GGML_ABORT defined as `throw_failure` gives ggml-base `guarded<function>::call` in place of each
// function: it catches exceptions, passes the text to `note_failure`, and returns nothing, zero or GGML_STATUS_FAILED.
#pragma once

#include "ggml.h"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <type_traits>

struct backend_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] static void throw_failure(const char * what) { throw backend_failure(what); }
template <typename... T> [[noreturn]] static void throw_failure(const char * what, T... values) {
    char text[512];
    std::snprintf(text, sizeof text, what, values...);
    throw backend_failure(text);
}

template <auto function> struct guarded;

template <typename R, typename T, typename... A, R (*function)(T, A...)> struct guarded<function> {
    static R call(T first, A... arguments) {
        try {
            return function(first, arguments...);
        } catch (const std::exception & error) {
            note_failure(first, error.what()); // the including file defines it for each type of a first argument
            if constexpr (std::is_same_v<R, enum ggml_status>) {
                return GGML_STATUS_FAILED;
            } else if constexpr (!std::is_void_v<R>) {
                return R{};
            }
        }
    }
};
