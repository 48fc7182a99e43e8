/* The notes of a membership as a journal has them, and whether they make the same one again. */
#ifndef ZPS_TESTS_FUZZ_NOTES_H
#define ZPS_TESTS_FUZZ_NOTES_H

#include "server/membership/members.h"
#include "server/state/journal.h"

/* A membership whose notes go to a buffer, of the moment; NULL: nowhere. */
struct noted {
  struct zps_members *members;
  struct zps_journal_buffer *to;
};

/* Its function for notes; `ctx` is a struct noted. */
void noted_on_note(void *ctx, const struct zps_member_note *note);
/* Gives the notes back to `again`, which has just begun, and looks whether both then say the same of themselves. */
void noted_compare(struct noted *is, const struct zps_journal_buffer *notes, struct noted *again, uint64_t now_ns);

#endif
