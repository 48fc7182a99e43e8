#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "server/ctl/plan.h"

/* gnuplot's own quoting: a single quote is written twice. */
static void put_quoted(FILE *to, const char *text) {
  fputc('\'', to);
  for (; *text; text++) {
    if (*text == '\'') fputc('\'', to);
    fputc(*text, to);
  }
  fputc('\'', to);
}

/* A scheme has one colour in every drawing; what tells them apart without colours are the points. */
static const char *const colours[] = {"#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2",
                                      "#7f7f7f", "#000000", "#555555", "#aaaaaa", "#17becf", "#bcbd22", "#393b79",
                                      "#e7969c", "#637939", "#8c6d31", "#ad494a", "#7b4173", "#e6550d"};
_Static_assert(sizeof colours / sizeof colours[0] == ZPS_PLAN_SCHEMES, "each scheme has a colour");

static void put_script(FILE *to, const char *path, const struct zps_ctl_plan *plan) {
  const struct zps_plan_input *input = &plan->input;
  fprintf(to, "set terminal svg size 1000,640 noenhanced background 'white'\nset output ");
  put_quoted(to, path);
  fprintf(to,
          "\nset title 'time of a round: %llu rows of %u, density %.3g, %.3g Gbit/s'\nset xlabel 'ranks'\n"
          "set ylabel 'milliseconds'\nset logscale x 2\nset logscale y\nset grid\nset key outside right\n",
          (unsigned long long)input->tensor.rows, input->tensor.width, input->profile.density,
          input->cluster.net.bandwidth * 8e-9);
  fputs("$times << END\n", to);
  for (unsigned p = 0; p < plan->n_points; p++) {
    const struct zps_plan_input at = zps_ctl_plan_at(plan, plan->points[p]);
    fprintf(to, "%u", plan->points[p]);
    for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
      struct zps_plan_cost cost;
      zps_plan_predict(&at, (enum zps_plan_scheme)s, &cost);
      fprintf(to, " %.9g", cost.time_s * 1e3);
    }
    fputc('\n', to);
  }
  fputs("END\nplot ", to);
  const char *comma = "";
  for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
    if (!(plan->schemes >> s & 1)) continue;
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)s;
    /* Exact sparse schemes stand out as solid lines; dense ones are dashed, lossy ones dotted. */
    const unsigned dash = zps_plan_scheme_all_values(scheme) ? 2 : zps_plan_scheme_lossy(scheme) ? 3 : 1;
    fprintf(to, "%s$times using 1:%u with linespoints dashtype %u linewidth 2 linecolor rgb '%s' title '%s'", comma,
            s + 2, dash, colours[s], zps_plan_scheme_name(scheme));
    comma = ", ";
  }
  fputs("\nunset output\n", to);
}

zps_err_t zps_ctl_plan_draw(const char *path, const struct zps_ctl_plan *plan, struct zps_error *error) {
  for (const char *at = path; *at; at++) {
    if ((unsigned char)*at < ' ') return zps_fail(error, ZPS_ERR_INVALID, "--svg: a file's name without line breaks");
  }
  FILE *probe = fopen(path, "w"); /* an error is reported here, where its cause is known */
  if (!probe) return zps_fail(error, ZPS_ERR_INVALID, "--svg: cannot write %s", path);
  fclose(probe);
  /* gnuplot may be gone before the script is written; its status says so. */
  void (*const before)(int) = signal(SIGPIPE, SIG_IGN);
  FILE *const to = popen("gnuplot", "w");
  if (to) put_script(to, path, plan);
  const int status = to ? pclose(to) : -1;
  signal(SIGPIPE, before);
  if (status == 0) return ZPS_OK;
  if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "--svg needs gnuplot, which is not installed; --json has all numbers");
  return zps_fail(error, ZPS_ERR_IO, "gnuplot did not draw %s (status %d)", path, status);
}
