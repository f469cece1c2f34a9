// Command image writes the container image that a Dockerfile's target is, without a
// builder or a registry: see package image.
//
//	image -target STAGE -name NAME:TAG [-file Dockerfile] [-arg NAME=VALUE ...] -o FILE
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/fairlead-mesh/fairlead/integration/image"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	dockerfile := flags.String("file", "Dockerfile", "the Dockerfile")
	target := flags.String("target", "", "the `stage` that is the image")
	name := flags.String("name", "", "the image's `name`, with a tag")
	out := flags.String("o", "", "the `file` that the archive is written to")
	build := map[string]string{}
	flags.Func("arg", "`NAME=VALUE` of a build argument", func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("there is no =")
		}
		build[name] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *target == "" || *out == "" {
		return errors.New("-target, -name and -o are needed, and nothing else but flags")
	}
	i, err := image.Read(*dockerfile, *target, build)
	if err != nil {
		return err
	}
	i.Name = *name
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	if err := errors.Join(i.Write(file), file.Close()); err != nil {
		return errors.Join(err, os.Remove(*out))
	}
	return nil
}
