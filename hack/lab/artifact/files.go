package artifact

import (
	"context"
	"errors"
	"io"
	"os"
)

// copyFile copies one file with its permissions; symbolic links are followed.
func copyFile(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}

// copySparse copies a file and leaves its holes out.
func copySparse(ctx context.Context, src, dst string) error {
	_, err := run(ctx, newCommand(ctx, "cp", "--sparse=always", "--reflink=auto", src, dst))
	return err
}
