/* Which sanitizer a test is built with: gcc and clang say it in different ways. */
#ifndef ZPS_TESTS_SUPPORT_SANITIZED_H
#define ZPS_TESTS_SUPPORT_SANITIZED_H

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define SANITIZED_ADDRESS 1
#endif
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREAD 1
#endif
#endif
#if defined __SANITIZE_ADDRESS__ && !defined SANITIZED_ADDRESS
#define SANITIZED_ADDRESS 1
#endif
#if defined __SANITIZE_THREAD__ && !defined SANITIZED_THREAD
#define SANITIZED_THREAD 1
#endif

#endif
