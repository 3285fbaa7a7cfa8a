# Sourced by check, demo and bench/run: makes .venv and finds Java. A line per step, no wall of log.
#
#   set_up_python   .venv with everything that requirements.lock names; made anew when that changed
#   set_up_machine  ip, pgrep and libfaketime, for root's tests on machines of their own; others go without
#   set_up_browser  Chromium, for tests of the pages
#   set_up_java     exports JAVA_HOME: a Java that Spark can use (after set_up_python)
#   set_up_ends     .jars with Kafka, PostgreSQL and Spark's ways to them and to S3, for tests and
#                   ./demo kafka (after set_up_java); got anew when scripts/jars.sha256 changed
#   set_up_servers  .servers with versitygw, an S3 server, and fake-gcs-server, built by Go, Azurite,
#                   from npm, and HDFS: for the tests at night (after set_up_java)
#   set_up_spark    makes every Java of Spark start in half the time, for tests: with its classes from
#                   an archive, and without the compiler that pays in long runs; compiles the file
#                   system that tests/sparks.py gives it (after set_up_java)
#   set_up_tests    set_up_ends, with an archive of Kafka's classes, and set_up_spark at once
#
# What is missing on a Debian machine is installed when we are root; otherwise one line says what to
# install, and we stop.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV="$ROOT/.venv"
JARS="$ROOT/.jars"
SERVERS="$ROOT/.servers"
VERSITYGW=v1.8.0
FAKE_GCS=v1.56.1
AZURITE=3.35.0
CLASSES="$ROOT/.spark-classes"
SETUP_LOGS="$ROOT/.setup-logs"
# If it is set, each program that a test starts compiles all of its imports again.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }

give_up() {
    say "set-up: $*"
    exit 1
}

# quiet_step LABEL COMMAND...: one line when it begins; its log is shown only if it fails.
quiet_step() {
    local label=$1 log begin=$SECONDS
    shift
    mkdir -p "$SETUP_LOGS"
    log="$SETUP_LOGS/$(printf '%s' "$label" | tr -cs 'A-Za-z0-9' '-').log"
    say "set-up: $label ..."
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        give_up "$label failed; the whole log is in ${log#"$ROOT"/}"
    fi
    say "set-up: $label: done in $((SECONDS - begin)) s"
}

# apt_install WHAT-FOR PACKAGE...
apt_install() {
    local purpose=$1
    shift
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        give_up "$purpose is missing: install it (on Debian: apt-get install $*) and run this again"
    fi
    quiet_step "apt-get update" apt-get update
    quiet_step "apt-get install $*" env DEBIAN_FRONTEND=noninteractive apt-get install -y "$@"
}

# Prints the first Python from 3.11 on that can make virtual environments.
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            printf '%s' "$name"
            return
        fi
    done
    return 1
}

# Installs the pinned pip first, because an old one takes twice the time. Nothing is compiled here:
# Python compiles the few modules that are imported.
install_packages() {
    local install=("$VENV/bin/python" -m pip install --disable-pip-version-check --no-compile
        --require-hashes)
    "${install[@]}" -r <(sed -n '/^pip==/,/[^\\]$/p' "$ROOT/requirements.lock") &&
        "${install[@]}" -r "$ROOT/requirements.lock"
}

set_up_python() {
    local python stamp="$VENV/installed"
    if ! cat "$ROOT/requirements.lock" "$ROOT/pyproject.toml" 2>/dev/null | cmp -s - "$stamp"; then
        if ! cmp -s "$ROOT/requirements.lock" "$VENV/installed.lock"; then
            if ! python=$(find_python); then
                apt_install "Python 3.11 or later with venv" python3 python3-venv
                python=$(find_python) || give_up "Python 3.11 or later is needed: install it and run this again"
            fi
            rm -rf "$VENV"
            quiet_step "virtual environment in .venv" "$python" -m venv "$VENV"
            quiet_step "packages (some 500 MB the first time, a few minutes)" install_packages
            cp "$ROOT/requirements.lock" "$VENV/installed.lock"
        fi
        quiet_step "stillframe itself, editable" \
            "$VENV/bin/python" -m pip install --disable-pip-version-check \
            --no-deps --no-build-isolation --editable "$ROOT"
        cat "$ROOT/requirements.lock" "$ROOT/pyproject.toml" >"$stamp"
    fi
}

set_up_machine() {
    if [ "$(id -u)" = 0 ] && ! { command -v ip && command -v pgrep &&
        ls /usr/lib/*/faketime/libfaketime.so.1; } >/dev/null 2>&1; then
        apt_install "ip, pgrep or libfaketime, for tests with a network and a clock of their own," \
            iproute2 procps faketime
    fi
}

set_up_browser() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        apt_install "Chromium, for tests of the pages," chromium fonts-dejavu-core
}

set_up_java() {
    local find='from stillframe.spark.session import find_java; print(find_java())'
    if ! JAVA_HOME=$("$VENV/bin/python" -c "$find" 2>/dev/null); then
        apt_install "Java 17, 21 or 25 (a full one)" openjdk-17-jre-headless
        JAVA_HOME=$("$VENV/bin/python" -c "$find") || give_up "no Java that Spark can use was found"
    fi
    export JAVA_HOME
}

get_jars() {
    local new="$JARS.new" postgres
    postgres="postgres-$(uname -m)"
    rm -rf "$new" "$JARS"
    "$VENV/bin/python" "$ROOT/scripts/jars.py" get "$new" kafka spark s3a "$postgres" &&
        mv "$new/$postgres" "$new/postgres" &&
        cp "$ROOT/scripts/jars.sha256" "$new/installed" && mv "$new" "$JARS"
}

set_up_ends() {
    cmp -s "$ROOT/scripts/jars.sha256" "$JARS/installed" ||
        quiet_step "Kafka, PostgreSQL and Spark's way to S3 from Maven Central (some 80 MB)" get_jars
}

# From 1.21 on, Go fetches the newer Go that a program asks for.
debian_has_go() {
    local found
    found=$(apt-cache policy golang-go 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*:\)\?//p')
    [[ $found = [0-9]* ]] && printf '%s\n' 1.21 "${found%%~*}" | sort -V -C
}

build_servers() {
    local new="$SERVERS.new"
    rm -rf "$new" "$SERVERS" && mkdir "$new" &&
        GOBIN="$new" go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW" &&
        GOBIN="$new" go install "github.com/fsouza/fake-gcs-server@$FAKE_GCS" &&
        npm install --prefix "$new" --ignore-scripts --no-audit --no-fund "azurite@$AZURITE" &&
        printf '%s\n' "$1" >"$new/installed" && mv "$new" "$SERVERS"
}

get_hdfs() {
    local new="$SERVERS/hdfs.new"
    rm -rf "$new" "$SERVERS/hdfs"
    "$VENV/bin/python" "$ROOT/scripts/jars.py" get "$new" hdfs &&
        cp "$ROOT/scripts/jars.sha256" "$new/hdfs/installed" && mv "$new/hdfs" "$SERVERS" && rm -rf "$new"
}

set_up_servers() {
    set_up_object_stores
    cmp -s "$ROOT/scripts/jars.sha256" "$SERVERS/hdfs/installed" ||
        quiet_step "HDFS from Maven Central (some 60 MB)" get_hdfs
}

set_up_object_stores() {
    local wanted="versitygw $VERSITYGW, fake-gcs-server $FAKE_GCS, Azurite $AZURITE"
    if [ "$(cat "$SERVERS/installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if ! command -v go >/dev/null; then
        debian_has_go || give_up "Go, which builds object stores for the tests at night, is missing:" \
            "install 1.25 or later from https://go.dev/dl and run this again"
        apt_install "Go, which builds object stores for the tests at night," golang-go
    fi
    command -v npm >/dev/null || apt_install "npm, which gets Azurite for the tests at night," npm
    quiet_step "$wanted: object stores (some 400 MB, a few minutes)" build_servers "$wanted"
}

# What an archive of classes is made for: another Java needs another one, and so do other jars, or the
# same ones put there anew.
classes_are_of() {
    "$JAVA_HOME/bin/java" -version 2>&1
    stat -c '%n %s %Y' "$VENV"/lib/python3*/site-packages/pyspark/jars/*.jar
    cat "$ROOT/scripts/warm_spark.py" "$ROOT/scripts/LocalFiles.java"
}

# With the compiler that Spark brings: a Java to run programs has none.
compile_local_files() {
    local jars needed
    jars=$(echo "$VENV"/lib/python3*/site-packages/pyspark/jars)
    needed=$(printf '%s:' "$jars"/{hadoop,slf4j}-*.jar)
    "$JAVA_HOME/bin/java" -cp "$jars/*" org.codehaus.commons.compiler.samples.CompilerDemo \
        -classpath "$needed" -d "$CLASSES/local-files" "$ROOT/scripts/LocalFiles.java"
}

archive_classes() {
    rm -rf "$CLASSES" && mkdir "$CLASSES" && compile_local_files &&
        SPARK_SUBMIT_OPTS+=" -XX:ArchiveClassesAtExit=$CLASSES/archive" \
            "$VENV/bin/python" "$ROOT/scripts/warm_spark.py" &&
        [ -s "$CLASSES/archive" ] && classes_are_of >"$CLASSES/made-for"
}

set_up_spark() {
    # What Java has to say of the archive belongs into no output of a test.
    local quick="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
    export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-} $quick"
    if ! classes_are_of | cmp -s - "$CLASSES/made-for" &&
        ! (quiet_step "archive of Spark's classes (some 190 MB, for tests)" archive_classes); then
        say "set-up: going on without it: Spark starts more slowly"
        return
    fi
    SPARK_SUBMIT_OPTS+=" -XX:SharedArchiveFile=$CLASSES/archive"
}

archive_kafka_classes() {
    (cd "$ROOT" && PYTHONPATH=src:. "$VENV/bin/python" -m scripts.warm_kafka)
}

# It is in .jars, and so made anew with them.
set_up_kafka() {
    set_up_ends
    [ -s "$JARS/kafka-classes" ] ||
        (quiet_step "archive of Kafka's classes (some 50 MB, for tests)" archive_kafka_classes) ||
        say "set-up: going on without it: Kafka starts more slowly"
}

set_up_tests() {
    set_up_kafka &
    set_up_spark
    wait $! || exit 1
}
