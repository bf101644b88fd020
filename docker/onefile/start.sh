#!/bin/sh
# l2rtui in one file: this script, and behind it an archive of a Python interpreter with everything that l2rtui imports.
# The first start unpacks the archive into the cache folder; every later one only runs what is there.
l2rtui_fail() { echo "l2rtui: $1" >&2; exit 1; }
l2rtui_cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
[ -n "$l2rtui_cache" ] || l2rtui_fail "There is no home folder to unpack into. Set XDG_CACHE_HOME to a folder of yours."
l2rtui_home=$l2rtui_cache/l2rtui/@DIGEST@
l2rtui_python=$l2rtui_home/bin/l2rtui-python
if [ ! -x "$l2rtui_python" ]; then
    [ "$(uname -s)-$(uname -m)" = "@PLATFORM@" ] ||
        l2rtui_fail "This file is for @PLATFORM@, and this machine is $(uname -s)-$(uname -m). Take the file that was built for it."
    l2rtui_new=$l2rtui_home.$$
    umask 077
    mkdir -p "$l2rtui_new" 2>/dev/null ||
        l2rtui_fail "$l2rtui_cache cannot be written. Set XDG_CACHE_HOME to a folder of yours with @MEGABYTES@ MB free."
    trap 'rm -rf "$l2rtui_new"' EXIT
    trap 'exit 130' INT TERM HUP
    # Both ends of the pipe can fail: gzip where the file is damaged, tar where the disk is full.
    { tail -c +@OFFSET@ "$0" | gzip -dc 2>/dev/null || echo damaged >"$l2rtui_new.damaged"; } |
        tar -xf - -C "$l2rtui_new" 2>/dev/null || l2rtui_torn=1
    if [ -e "$l2rtui_new.damaged" ] || [ -n "$l2rtui_torn" ]; then
        rm -f "$l2rtui_new.damaged"
        l2rtui_fail "The file could not be unpacked into $l2rtui_cache. Copy it again, and see that @MEGABYTES@ MB are free there (or set XDG_CACHE_HOME)."
    fi
    "$l2rtui_new/bin/l2rtui-python" -I -c 'pass' 2>/dev/null ||
        l2rtui_fail "The Python in this file does not run here: it needs @LIBC@ or later, and a folder that programs may be started from (set XDG_CACHE_HOME)."
    # Renamed when complete; another start may have come first, and then its copy is as good.
    "$l2rtui_new/bin/l2rtui-python" -I -c 'import os, sys; os.rename(*sys.argv[1:])' "$l2rtui_new" "$l2rtui_home" 2>/dev/null
    rm -rf "$l2rtui_new"
    trap - EXIT INT TERM HUP
    [ -x "$l2rtui_python" ] || l2rtui_fail "$l2rtui_home is in the way. Remove it."
fi
exec "$l2rtui_python" -I -m l2rtui "$@"
