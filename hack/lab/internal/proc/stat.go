package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// stat is the part of /proc/PID/stat that identifies a process.
type stat struct {
	state   byte
	ppid    int
	session int
	threads int
	start   uint64
}

// over tells whether nothing of the process runs any more. A leader of threads that
// has ended is a zombie while its threads still end, and with them what the process
// holds: a port stays bound until the last one is gone.
func (s stat) over() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(b))
}

// parseStat reads a line of proc(5) stat. The command name is in parentheses and
// may itself contain blanks and parentheses, so fields are counted from the last
// closing one.
func parseStat(line string) (stat, error) {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("stat line %q has no command name", line)
	}
	f := strings.Fields(line[end+1:])
	const state, ppid, session, threads, start = 0, 1, 3, 17, 19 // proc(5) fields 3, 4, 6, 20, 22
	if len(f) <= start || len(f[state]) != 1 {
		return stat{}, fmt.Errorf("stat line %q has too few fields", line)
	}
	out := stat{state: f[state][0]}
	var err error
	if out.ppid, err = strconv.Atoi(f[ppid]); err != nil {
		return stat{}, fmt.Errorf("parent in stat line: %w", err)
	}
	if out.session, err = strconv.Atoi(f[session]); err != nil {
		return stat{}, fmt.Errorf("session in stat line: %w", err)
	}
	if out.threads, err = strconv.Atoi(f[threads]); err != nil {
		return stat{}, fmt.Errorf("number of threads in stat line: %w", err)
	}
	if out.start, err = strconv.ParseUint(f[start], 10, 64); err != nil {
		return stat{}, fmt.Errorf("start time in stat line: %w", err)
	}
	return out, nil
}

// netnsOf returns the inode number of a process's network namespace.
func netnsOf(pid int) (uint64, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return 0, err
	}
	return parseNsLink(link)
}

// parseNsLink reads a link such as "net:[4026531840]" (namespaces(7)).
func parseNsLink(link string) (uint64, error) {
	num, ok := strings.CutPrefix(link, "net:[")
	num, ok2 := strings.CutSuffix(num, "]")
	if !ok || !ok2 {
		return 0, fmt.Errorf("namespace link %q is not net:[N]", link)
	}
	return strconv.ParseUint(num, 10, 64)
}
