#!/bin/bash
# {summary}
#SBATCH --job-name={name}
#SBATCH --array=0-{last}%{running}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --time={time}
#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{warning}
{directives}
{environment}
{setup}
cd {folder} || exit 1
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac

# USR1 comes {warning} s before the time is up, or with preemption: the runs save, and the job is queued again. TERM
# comes from scancel: they save, and the job ends.
warned=
terminate() {{ {terminate}; }}
echo "$(date) $(hostname) $SLURM_JOB_NAME $SLURM_ARRAY_TASK_ID, start ${{SLURM_RESTART_COUNT:-0}}"
{run}"$@" &
child=$!
trap 'warned=1; terminate' USR1
trap terminate TERM
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
wait "$child"
code=$?
if [ "$warned" ] && [ "$code" -gt 128 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" && sleep 60
fi
exit "$code"
