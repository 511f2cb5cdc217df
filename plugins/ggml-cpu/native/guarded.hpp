// Functions of a ggml backend whose failures come back as failures.
//
// ggml ends the process where a device fails, and throws through functions in C. A file that includes one of ggml's with
// GGML_ABORT defined as `throw_failure` gives ggml-base `guarded<function>::call` in the place of each function: it
// catches what is thrown, tells `note_failure` of it, and returns nothing, zero or GGML_STATUS_FAILED.
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
            note_failure(first, error.what()); // of the including file, for each type that comes first
            if constexpr (std::is_same_v<R, enum ggml_status>) {
                return GGML_STATUS_FAILED;
            } else if constexpr (!std::is_void_v<R>) {
                return R{};
            }
        }
    }
};
