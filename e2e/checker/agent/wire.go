package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// wire moves bytes from a device of one machine to one of another and does nothing else: what a stream can reach
// at most between them. One side listens and reads, the other one connects, writes and prints MiB/s.
//
//	agent wire -listen :5598 -device PATH -mib 512 [-tls]
//	agent wire -connect ADDRESS:5598 -device PATH -mib 512 [-tls]
type wire struct {
	listen, connect, device string
	mib                     int
	tls                     bool
}

func runWire(args []string) error {
	var w wire
	f := flag.NewFlagSet("wire", flag.ContinueOnError)
	f.StringVar(&w.listen, "listen", "", "address to send at")
	f.StringVar(&w.connect, "connect", "", "address to take from")
	f.StringVar(&w.device, "device", "", "device to read, or to write")
	f.IntVar(&w.mib, "mib", 512, "how much, in MiB")
	f.BoolVar(&w.tls, "tls", false, "encrypt it, as TLS 1.3 does")
	if err := f.Parse(args); err != nil {
		return err
	}
	runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0))) // the network does not wait for the SSD
	if w.listen != "" {
		return w.send()
	}
	return w.take()
}

const mib = 1 << 20

// batched has TLS read and write more at a time than its records.
type batched struct {
	net.Conn
	in  *bufio.Reader
	out *bufio.Writer
	// bulk keeps what is written until there is much of it.
	bulk bool
}

func batch(c net.Conn) *batched {
	return &batched{Conn: c, in: bufio.NewReaderSize(c, 128<<10), out: bufio.NewWriterSize(c, 128<<10)}
}

// Read implements net.Conn.
func (b *batched) Read(p []byte) (int, error) { return b.in.Read(p) }

// Write implements net.Conn.
func (b *batched) Write(p []byte) (int, error) {
	n, err := b.out.Write(p)
	if err == nil && !b.bulk {
		err = b.out.Flush()
	}
	return n, err
}

func (w *wire) send() (err error) {
	l, err := net.Listen("tcp", w.listen)
	if err != nil {
		return err
	}
	raw, err := l.Accept()
	if err != nil {
		return err
	}
	b := batch(raw)
	defer func() { err = errors.Join(err, b.out.Flush(), raw.Close()) }()
	var to io.Writer = raw
	if w.tls {
		conf, err := selfSigned()
		if err != nil {
			return err
		}
		conn := tls.Server(b, conf)
		if err := conn.Handshake(); err != nil {
			return err
		}
		b.bulk, to = true, conn
	}
	dev, err := blockdev.Open(w.device, os.O_RDONLY|syscall.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	return w.pipe(dev.ReadAt, func(p []byte, _ int64) (int, error) { return to.Write(p) })
}

func (w *wire) take() (err error) {
	raw, err := net.Dial("tcp", w.connect)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }() // it has brought everything, or failed
	var from io.Reader = raw
	if w.tls {
		conn := tls.Client(batch(raw), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
		if err := conn.Handshake(); err != nil {
			return err
		}
		from = conn
	}
	dev, err := blockdev.Open(w.device, os.O_RDWR|syscall.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	began := time.Now()
	err = w.pipe(func(p []byte, _ int64) (int, error) { return io.ReadFull(from, p) }, dev.WriteAt)
	if err = errors.Join(err, dev.Sync()); err == nil {
		fmt.Printf("%.1f\n", float64(w.mib)/time.Since(began).Seconds())
	}
	return err
}

// pipe has one side work beside the other.
func (w *wire) pipe(get, put func(p []byte, at int64) (int, error)) error {
	free, full, failed := make(chan []byte, 2), make(chan []byte, 2), make(chan error, 1)
	for range cap(free) {
		free <- blockdev.AlignedBuffer(mib)
	}
	go func() {
		defer close(full)
		for i := range w.mib {
			p := <-free
			if _, err := get(p, int64(i)*mib); err != nil {
				failed <- err
				return
			}
			full <- p
		}
	}()
	at := int64(0)
	for p := range full {
		if _, err := put(p, at); err != nil {
			return err
		}
		at += mib
		free <- p
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, nil
}
