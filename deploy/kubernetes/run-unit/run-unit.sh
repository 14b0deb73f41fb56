# sh run-unit.sh UNIT: run the program of a systemd unit in a container, with its folder and environment.
# In a unit, %% is a percent sign and, in a command, $$ is a dollar sign.
set -eu
umask 077
cd "$(sed -n 's/^WorkingDirectory=//p' "$1")"
eval "export $(sed -n 's/^Environment=//p' "$1" | sed 's/%%/%/g; s/[$`]/\\&/g' | tr '\n' ' ')"
eval "exec $(sed -n 's/^ExecStart=//p' "$1" | sed 's/%%/%/g; s/\$\$/$/g; s/[$`]/\\&/g')"
