/*
 * A gradient, or a result, that is several arrays: each has some of the tensor's rows, and rows that none has are zero.
 * Sections ascend and do not overlap. In the API they are parts (zenps_part_t); here those are the partitions.
 */
#ifndef ZPS_CODEC_SECTIONS_H
#define ZPS_CODEC_SECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bisect.h"

struct zps_section {
  uint64_t first_row, n_rows; /* rows [first_row, first_row + n_rows) of the tensor */
  void *values;               /* dense: n_rows of them; a list: n_entries */
  const int64_t *rows;        /* a list's, counted from first_row, in any order; NULL: dense */
  uint64_t n_entries;         /* dense: n_rows */
  uint64_t first_entry;       /* entries of the sections before */
};

struct zps_sections {
  struct zps_section *list;
  uint32_t n;
  bool are_dense; /* all of them */
  uint64_t n_entries;
};

/* Fills in what follows from the list. */
static inline void zps_sections_count(struct zps_sections *sections) {
  sections->are_dense = true;
  sections->n_entries = 0;
  for (uint32_t i = 0; i < sections->n; i++) {
    struct zps_section *const section = &sections->list[i];
    if (!section->rows) section->n_entries = section->n_rows;
    if (section->rows) sections->are_dense = false;
    section->first_entry = sections->n_entries;
    sections->n_entries += section->n_entries;
  }
}

/* The number of sections that begin at `row` or before. */
static inline uint32_t zps_sections_begun(const struct zps_sections *sections, uint64_t row) {
  uint32_t low = 0, high = sections->n;
  zps_bisect(low, high, middle, sections->list[middle].first_row <= row);
  return low;
}

/* Rows that lie one after the other. */
struct zps_section_rows {
  char *values; /* NULL: no section has them */
  uint64_t n;
};

/* Of dense sections: rows from `row` on, up to `n` of them. */
static inline struct zps_section_rows zps_sections_rows(const struct zps_sections *sections, uint64_t row, uint64_t n,
                                                        uint64_t row_bytes) {
  const uint32_t begun = zps_sections_begun(sections, row);
  const struct zps_section *const section = &sections->list[begun ? begun - 1 : 0];
  if (begun && row - section->first_row < section->n_rows) {
    const uint64_t at = row - section->first_row, left = section->n_rows - at;
    return (struct zps_section_rows){(char *)section->values + at * row_bytes, n < left ? n : left};
  }
  const uint64_t gap = begun < sections->n ? sections->list[begun].first_row - row : n;
  return (struct zps_section_rows){NULL, n < gap ? n : gap};
}

#endif
