// Command pause is everything that runs in the pods of the rig: the sandbox, training pods, repair and validation Jobs.
//
// It waits for SIGTERM. `--sleep 2s` ends by itself after that time, `--exit N` with that status; the environment
// variables PAUSE_SLEEP and PAUSE_EXIT say the same. Called as true, false or sleep it behaves as those do.
package main

import (
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

func main() {
	sleep, status := behaviour()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	var over <-chan time.Time
	if sleep >= 0 {
		over = time.After(sleep)
	}
	select {
	case <-ended:
	case <-over:
	}
	os.Exit(status)
}

// behaviour returns how long to live (negative: until a signal) and the exit status.
func behaviour() (time.Duration, int) {
	switch filepath.Base(os.Args[0]) {
	case "true":
		return 0, 0
	case "false":
		return 0, 1
	case "sleep":
		return duration(os.Args[len(os.Args)-1]), 0
	}
	sleep := flag.String("sleep", os.Getenv("PAUSE_SLEEP"), "live this long (2s, 500ms, 3); empty: until SIGTERM")
	status := flag.String("exit", os.Getenv("PAUSE_EXIT"), "exit status")
	flag.Parse()
	code, err := strconv.Atoi(*status)
	if err != nil && *status != "" {
		code = 2
	}
	if *sleep == "" && *status != "" {
		return 0, code
	}
	return duration(*sleep), code
}

func duration(text string) time.Duration {
	if text == "" {
		return -1
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		return time.Duration(seconds * float64(time.Second))
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return -1
	}
	return parsed
}
