package cachestream

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxToken bounds what is read as a token, in bytes.
const maxToken = 12 << 10

// tokenFile is the token that kubelet renews in a file. It is read for each call.
type tokenFile string

// read returns the token. Its errors say nothing of the file's content.
func (f tokenFile) read() (token string, err error) {
	file, err := os.Open(string(f))
	if err != nil {
		return "", fmt.Errorf("token of the stream: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("token of the stream: %w", err)
	}
	token = strings.TrimSpace(string(text))
	if !plausible(token) {
		return "", fmt.Errorf("token of the stream: %s holds no token", string(f))
	}
	return token, nil
}

// plausible reports whether a text may be a token at all: visible ASCII of a bounded length.
func plausible(token string) bool {
	if token == "" || len(token) > maxToken {
		return false
	}
	return !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}
