#include "worker/examples/libsvm.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "worker/tools/lines.h"

static bool add_entry(struct sample_set *set, uint32_t index, float value) {
  if (set->n_entries == set->entries_capacity) {
    const uint64_t capacity = set->entries_capacity ? 2 * set->entries_capacity : 4096;
    if (!zps_enlarge(&set->index, capacity, sizeof *set->index) ||
        !zps_enlarge(&set->value, capacity, sizeof *set->value))
      return false;
    set->entries_capacity = capacity;
  }
  set->index[set->n_entries] = index;
  set->value[set->n_entries++] = value;
  return true;
}

static bool begin_sample(struct sample_set *set, double label) {
  if (set->n_own + 1 >= set->capacity) {
    const uint64_t capacity = set->capacity ? 2 * set->capacity : 1024;
    if (!zps_enlarge(&set->first, capacity, sizeof *set->first) ||
        !zps_enlarge(&set->labels, capacity, sizeof *set->labels))
      return false;
    set->capacity = capacity;
  }
  set->first[set->n_own] = set->n_entries;
  set->labels[set->n_own++] = label;
  return add_entry(set, 0, 1.0f); /* the bias */
}

/* Where a line is, for errors. */
struct place {
  const char *path;
  uint64_t number;
};

/* Fails with the place of `at`, what was found there, and what would be right. */
static zps_err_t refuse(const struct place *place, const char *at, const char *is, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu: '%.20s' %s", place->path, (unsigned long long)place->number,
                  at, is);
}

/* The row of the model for a feature's index, from 1 on: the index, or its place among so many hashed ones. */
static zps_err_t row_of(const struct libsvm_share *share, const struct place *place, const char *at, char **end_p,
                        uint32_t *row_p, struct zps_error *error) {
  errno = 0;
  const unsigned long long index = strtoull(at, end_p, 10);
  const bool is_long = errno == ERANGE;
  if (*end_p == at || **end_p != ':' || *at == '-' || index == 0)
    return refuse(place, at, "is no feature: must be index:value, with an index from 1 on", error);
  if (share->features > 0 && !is_long) {
    *row_p = (uint32_t)((index - 1) % share->features + 1);
    return ZPS_OK;
  }
  *row_p = (uint32_t)index;
  if (!is_long && index <= share->index_most) return ZPS_OK;
  char most[60];
  snprintf(most, sizeof most, "%llu%s", share->features > 0 ? ULLONG_MAX : (unsigned long long)share->index_most,
           share->features == 0 && share->index_most < UINT32_MAX - 1 ? ", by this machine's memory" : "");
  return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu: the index %.*s is too large: at most %s%s", place->path,
                  (unsigned long long)place->number, (int)(*end_p - at), at, most,
                  share->features > 0 ? "" : "; --features=N takes the indices of hashed features modulo N");
}

/* qid:NUMBER, which groups the samples of one query for ranking. A linear model has no use for it. */
static bool skip_query(char **at_p) {
  char *const at = *at_p;
  if (strncmp(at, "qid:", 4) != 0) return false;
  const size_t len = strspn(at + 4, "0123456789"), end = 4 + len;
  if (len == 0 || (at[end] != '\0' && at[end] != ' ' && at[end] != '\t')) return false;
  *at_p += end;
  return true;
}

static zps_err_t parse_sample(const struct libsvm_share *share, struct libsvm *data, struct sample_set *set,
                              const struct place *place, char *at, struct zps_error *error) {
  char *end;
  const double label = strtod(at, &end);
  if (end == at || !isfinite(label) || !strchr(" \t#", *end))
    return refuse(place, at, "is no label: a line is 'label index:value ...'", error);
  bool ok = begin_sample(set, label), is_first = true;
  for (at = end; ok; is_first = false) {
    uint32_t row = 0;
    at += strspn(at, " \t");
    if (*at == '\0' || *at == '#') break;
    if (is_first && skip_query(&at)) continue;
    const zps_err_t err = row_of(share, place, at, &end, &row, error);
    if (err) return err;
    char *value_text = end + 1;
    const float value = strtof(value_text, &end);
    if (end == value_text || !isfinite(value) || (*end != ' ' && *end != '\t' && *end != '\0'))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %llu: feature %.*s has no finite value: must be index:value, such as 7:0.5",
                      place->path, (unsigned long long)place->number, (int)(value_text - 1 - at), at);
    ok = add_entry(set, row, value);
    if (row >= data->n_features) data->n_features = row + 1;
    at = end;
  }
  if (!ok)
    return zps_fail(error, ZPS_ERR_NOMEM, "out of memory at line %llu of %s", (unsigned long long)place->number,
                    place->path);
  set->first[set->n_own] = set->n_entries;
  return ZPS_OK;
}

/* Opens this rank's part of the file, or all of it where it has no parts: a pipe can be opened once. */
static zps_err_t open_lines(struct libsvm_share *share, struct zps_error *error) {
  zps_err_t code = zps_tools_lines_open(share->path, &share->lines, error);
  if (code != ZPS_OK) return code;
  code = zps_tools_lines_part(share->lines, (uint64_t)share->rank, (uint64_t)share->world, error);
  share->in_parts = code == ZPS_OK;
  if (share->in_parts) zps_tools_lines_number_from(share->lines, share->lines_before);
  if (code == ZPS_OK || code == ZPS_ERR_UNSUPPORTED) return ZPS_OK;
  libsvm_close(share);
  return code;
}

zps_err_t libsvm_count(struct libsvm_share *share, struct zps_error *error) {
  zps_err_t code = open_lines(share, error);
  share->n_lines = 0;
  if (code != ZPS_OK || !share->in_parts) return code;
  code = zps_tools_lines_count(share->lines, &share->n_lines, error);
  libsvm_close(share);
  return code;
}

void libsvm_close(struct libsvm_share *share) {
  zps_tools_lines_close(share->lines);
  share->lines = NULL;
}

zps_err_t libsvm_read(struct libsvm_share *share, struct libsvm *data, struct zps_error *error) {
  const uint64_t stride = share->in_parts ? 1 : (uint64_t)share->world;
  const uint64_t first = share->in_parts ? 0 : (uint64_t)share->rank;
  *data = (struct libsvm){.n_features = 1};
  data->training.stride = data->held_out.stride = stride;
  data->training.first_number = data->held_out.first_number = first;
  zps_err_t code = share->in_parts ? open_lines(share, error) : ZPS_OK;
  if (code != ZPS_OK) return code;
  char *line;
  size_t len;
  while ((code = zps_tools_lines_next(share->lines, &line, &len, error)) == ZPS_OK) {
    const struct place place = {share->path, zps_tools_lines_number(share->lines)};
    line += strspn(line, " \t");
    if (*line == '\0' || *line == '#') continue;
    struct sample_set *set = share->holdout && place.number % share->holdout == 0 ? &data->held_out : &data->training;
    const uint64_t position = set->n_all++;
    if (position % stride != first) continue;
    code = parse_sample(share, data, set, &place, line, error);
    if (code != ZPS_OK) break;
  }
  libsvm_close(share);
  if (code == ZPS_ERR_CLOSED) return ZPS_OK;
  libsvm_free(data);
  return code;
}

void libsvm_place(struct libsvm *data, uint64_t training_before, uint64_t training_all, uint64_t held_out_before,
                  uint64_t held_out_all) {
  data->training.first_number = training_before;
  data->training.n_all = training_all;
  data->held_out.first_number = held_out_before;
  data->held_out.n_all = held_out_all;
}

zps_err_t libsvm_check(const struct libsvm *data, const char *path, struct zps_error *error) {
  if (data->training.n_all > 0) return ZPS_OK;
  if (data->held_out.n_all > 0)
    return zps_fail(error, ZPS_ERR_INVALID, "%s: all %llu samples are held out, and none is left to train on", path,
                    (unsigned long long)data->held_out.n_all);
  return zps_fail(error, ZPS_ERR_INVALID, "%s holds no samples", path);
}

static void set_free(struct sample_set *set) {
  free(set->first);
  free(set->labels);
  free(set->index);
  free(set->value);
}

void libsvm_free(struct libsvm *data) {
  set_free(&data->training);
  set_free(&data->held_out);
  *data = (struct libsvm){.n_features = 0};
}

bool sample_own(const struct sample_set *set, uint64_t number, uint64_t *own_p) {
  if (number < set->first_number || (number - set->first_number) % set->stride != 0) return false;
  *own_p = (number - set->first_number) / set->stride;
  return *own_p < set->n_own;
}

struct sample sample_at(const struct sample_set *set, uint64_t own_index) {
  const uint64_t first = set->first[own_index];
  return (struct sample){set->labels[own_index], (uint32_t)(set->first[own_index + 1] - first), set->index + first,
                         set->value + first};
}
