/* Reads over an end of the fabric of one's own, one at a time, by keys that may be wrong; who does so is counted by the
 * caller. */
#ifndef ZPS_TESTS_INTEGRATION_STRANGER_READ_H
#define ZPS_TESTS_INTEGRATION_STRANGER_READ_H

#include "tests/integration/stranger.h"

#define STRANGER_READ_BYTES 64

struct stranger_reader {
  struct stranger self;
  struct zps_net_mem mem;
  struct zps_net_read read;
  bool is_reading, is_done;
  zps_err_t code; /* of the last read, once it is done */
  uint64_t until_ns;
  uint8_t buffer[STRANGER_READ_BYTES];
};

/* The reader must not move until it is closed. false: there is no fabric, which is said. */
bool stranger_reader_open(struct stranger_reader *reader);
void stranger_reader_close(struct stranger_reader *reader);
/* Begins one at the fabric address `to`; the last one must be over. false: it cannot be begun. */
bool stranger_read_begin(struct stranger_reader *reader, const void *to, size_t to_len, uint64_t address, uint64_t key);
/* Ends the program where a read does not end for STRANGER_PATIENCE_NS. */
void stranger_read_must_end(const struct stranger_reader *reader);
/* Begins one and waits for its end; `other`, which may be NULL, is driven meanwhile. */
zps_err_t stranger_read_now(struct stranger_reader *reader, const void *to, size_t to_len, uint64_t address,
                            uint64_t key, struct zps_net *other);

#endif
