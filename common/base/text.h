/* Text that a peer wrote and that ends up in logs and terminals: printable UTF-8, one line. */
#ifndef ZPS_BASE_TEXT_H
#define ZPS_BASE_TEXT_H

#include <stddef.h>

/* The number of leading bytes that are well-formed UTF-8 (no surrogates, no overlong forms) without control characters:
 * `len` when all are. */
size_t zps_text_printable(const char *text, size_t len);
/* Replaces every byte that is not part of such text by '?': texts of the system, and texts cut in the middle of a
 * character, may be sent. */
void zps_text_sanitize(char *text, size_t len);

#endif
