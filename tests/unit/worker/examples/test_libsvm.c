/* libsvm files as they come: what is taken, and what is refused with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/examples/libsvm.h"

static char path[64];

static void write_file(const char *text, size_t len) {
  snprintf(path, sizeof path, "test_libsvm.XXXXXX");
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, len), (ssize_t)len);
  close(fd);
}

/* Reads the file as `world` ranks do, one after another. The text of the first error, or of what all ranks have:
 * "LABEL ROW:VALUE ...|" for each sample. */
static const char *read_as(int world, uint32_t features, uint32_t index_most) {
  static char got[400];
  size_t n = 0;
  uint64_t before = 0;
  got[0] = '\0';
  for (int rank = 0; rank < world; rank++) {
    struct zps_error error;
    struct libsvm data;
    struct libsvm_share share = {
        .path = path, .rank = rank, .world = world, .features = features, .index_most = index_most};
    assert_int_equal(libsvm_count(&share, &error), ZPS_OK);
    share.lines_before = before;
    before += share.n_lines;
    if (libsvm_read(&share, &data, &error) != ZPS_OK) return strcpy(got, strchr(error.text, ',') + 2);
    for (uint64_t i = 0; i < data.training.n_own; i++) {
      const struct sample sample = sample_at(&data.training, i);
      n += (size_t)snprintf(got + n, sizeof got - n, "%g", sample.label);
      for (uint32_t k = 1; k < sample.n; k++) /* after the bias */
        n += (size_t)snprintf(got + n, sizeof got - n, " %u:%g", sample.index[k], sample.value[k]);
      n += (size_t)snprintf(got + n, sizeof got - n, "|");
    }
    libsvm_free(&data);
  }
  return got;
}

#define MOST 4294967293u
static void files_are_read_as_they_come(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t len; /* 0: strlen() */
    uint32_t features, index_most;
    const char *wanted;
  } cases[] = {
      {"1 3:0.5 7:2\n-1 1:1 # a comment\n", 0, 0, MOST, "1 3:0.5 7:2|-1 1:1|"},
      {"1 qid:12 3:0.5\n0 qid:13\n2 qid:13 # none\n", 0, 0, MOST, "1 3:0.5|0|2|"},
      {"\xef\xbb\xbf"
       "1 3:0.5\n",
       0, 0, MOST, "1 3:0.5|"},
      {"1 3:0.5\r\n2\t4:1\r\n", 0, 0, MOST, "1 3:0.5|2 4:1|"},
      {"1 4294967294:1 18446744073709551615:2 5:3\n", 0, 1000, MOST, "1 294:1 615:2 5:3|"},
      {"1 3:1 1000:1 1001:1\n", 0, 1000, 5, "1 3:1 1000:1 1:1|"},
      {"1 5:1\n", 0, 0, 5, "1 5:1|"},
      {"1 5:1\n2 6:1\n", 0, 0, 5,
       "line 2: the index 6 is too large: at most 5, by this machine's memory; --features=N takes the "
       "indices "
       "of hashed features modulo N"},
      {"1 2:1 4294967295:1\n", 0, 0, UINT32_MAX - 1,
       "line 1: the index 4294967295 is too large: at most 4294967294; --features=N takes the indices of "
       "hashed features modulo N"},
      {"1 12345678901234567890123:1\n", 0, 0, MOST,
       "line 1: the index 12345678901234567890123 is too large: at most 4294967293, by this machine's "
       "memory; "
       "--features=N takes the indices of hashed features modulo N"},
      {"1 12345678901234567890123:1\n", 0, 7, MOST,
       "line 1: the index 12345678901234567890123 is too large: at most 18446744073709551615"},
      {"1 3:0.5\n1 4:1 \0 5:1\n", 20, 0, MOST, "line 2, column 7: a NUL byte; must be text (UTF-8) without any"},
      {"1 3:0.5\n1 0:1\n", 0, 0, MOST, "line 2: '0:1' is no feature: must be index:value, with an index from 1 on"},
      {"1 -3:1\n", 0, 0, MOST, "line 1: '-3:1' is no feature: must be index:value, with an index from 1 on"},
      {"1 3:1 qid:4\n", 0, 0, MOST, "line 1: 'qid:4' is no feature: must be index:value, with an index from 1 on"},
      {"1 qid:x 3:1\n", 0, 0, MOST, "line 1: 'qid:x 3:1' is no feature: must be index:value, with an index from 1 on"},
      {"1 3:x\n", 0, 0, MOST, "line 1: feature 3 has no finite value: must be index:value, such as 7:0.5"},
      {"  cat 3:1\n", 0, 0, MOST, "line 1: 'cat 3:1' is no label: a line is 'label index:value ...'"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    write_file(cases[i].text, cases[i].len ? cases[i].len : strlen(cases[i].text));
    for (int world = 1; world < 4; world++)
      assert_string_equal(read_as(world, cases[i].features, cases[i].index_most), cases[i].wanted);
    assert_int_equal(unlink(path), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_read_as_they_come)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
