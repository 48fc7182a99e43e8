# ZPS_WITH_PKG(NAME, VAR, MODULE [>= VERSION], DEFAULT, USED-FOR)
# --with-NAME[=PATH|yes|no|auto]: finds MODULE with pkg-config, or under the prefix PATH alone. Sets VAR_CFLAGS, VAR_LIBS,
# have_VAR (yes/no) and why_VAR (a phrase for the summary). "yes" and a PATH make a missing package an error that says
# what to do; DEFAULT is what holds without the option.
AC_DEFUN([ZPS_WITH_PKG], [
  AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1@<:@=PATH|yes|no|auto@:>@], [$5 (default: $4)])], [zps_with=$withval], [zps_with=$4])
  have_$2=no
  zps_module=`echo "$3" | cut -d' ' -f1`
  zps_save=$PKG_CONFIG_PATH
  why_$2="pkg-config finds no $3"
  AS_CASE([$zps_with],
    [no], [why_$2="switched off by --without-$1"],
    [yes|auto], [],
    [why_$2="no $3 under $zps_with"
     # pkg-config would fall back to the system's package: the one asked for must be there itself.
     PKG_CONFIG_PATH=
     for zps_file in "$zps_with"/lib*/pkgconfig/$zps_module.pc "$zps_with"/lib/*/pkgconfig/$zps_module.pc \
       "$zps_with"/share/pkgconfig/$zps_module.pc; do
       AS_IF([test -z "$PKG_CONFIG_PATH" && test -f "$zps_file"], [PKG_CONFIG_PATH=`dirname "$zps_file"`])
     done
     zps_found=$PKG_CONFIG_PATH
     PKG_CONFIG_PATH="$PKG_CONFIG_PATH:$zps_save"
     export PKG_CONFIG_PATH])
  AS_IF([test "x$zps_with" = xyes || test "x$zps_with" = xauto || { test "x$zps_with" != xno && test -n "$zps_found"; }], [
    PKG_CHECK_MODULES([$2], [$3], [have_$2=yes; why_$2=`$PKG_CONFIG --modversion $zps_module`], [:])])
  AS_IF([test "x$have_$2" = xyes && test "x$zps_with" != xyes && test "x$zps_with" != xauto], [why_$2="$why_$2 from $zps_with"])
  PKG_CONFIG_PATH=$zps_save
  AS_IF([test "x$have_$2" = xno && test "x$zps_with" != xno && test "x$zps_with" != xauto],
    [AC_MSG_ERROR([--with-$1: $why_$2. Install its development package, or give --with-$1=PATH (the prefix that has lib/pkgconfig)])])
  AM_CONDITIONAL([HAVE_$2], [test "x$have_$2" = xyes])
])
