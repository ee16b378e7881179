# What rules that can be interrupted need; read by every rule's shell (see common.smk).

# What `metabt status` calls the job that a process belongs to.
export METABT_JOB=${SLURM_JOB_ID:+Slurm job $SLURM_JOB_ID}

# keep_log FILE: what comes in goes to FILE and on. It ends when its input does, not by a signal: the
# one that Slurm sends before a time limit goes to all processes of a job.
keep_log() {
    trap '' TERM USR1 INT
    tee "$1"
}

# again CODE: leave with the exit code of a trainer. 75 means that it was asked to stop and has saved
# everything. In a Slurm job that is not being cancelled, its time was up: the same job is put back
# into the queue, under the same number, so that the driver sees neither a failure nor a new job.
again() {
    trap : TERM USR1
    if [ "$1" = 75 ] && [ -n "${SLURM_JOB_ID:-}" ] &&
        [ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
        echo "metabt: time is up; Slurm job $SLURM_JOB_ID goes back into the queue, and on from here"
        if scontrol requeue "$SLURM_JOB_ID"; then
            sleep 300 # until Slurm ends this
        fi
    fi
    exit "$1"
}
