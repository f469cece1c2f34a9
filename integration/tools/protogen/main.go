// Command protogen writes the Go code of one .proto file, without protoc:
//
//	go run ./protogen -root ../.. -out ../.. ztunnelproto/zds.proto
//
// The path is relative to -root and becomes the name under which the file is
// registered. The code goes to the same path below -out.
//
// It survives: a .proto file that does not compile, or that imports another
// (both are reported and nothing is written).
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	root := flag.String("root", ".", "directory that the .proto file's path is relative to")
	out := flag.String("out", ".", "directory below which the code is written")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: protogen [-root DIR] [-out DIR] FILE.proto")
		os.Exit(2)
	}
	if err := generate(context.Background(), *root, *out, flag.Arg(0)); err != nil {
		fmt.Fprintf(os.Stderr, "protogen: cannot generate code for %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func generate(ctx context.Context, root, out, file string) error {
	descriptor, err := compile(ctx, root, file)
	if err != nil {
		return err
	}
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{descriptor},
	})
	if err != nil {
		return err
	}
	plugin := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	plugin.Stdin = bytes.NewReader(request)
	plugin.Stderr = os.Stderr
	answer, err := plugin.Output()
	if err != nil {
		return fmt.Errorf("cannot run protoc-gen-go: %w", err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.GetFile() {
		path := filepath.Join(out, f.GetName())
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func compile(ctx context.Context, root, file string) (*descriptorpb.FileDescriptorProto, error) {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{root}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, file)
	if err != nil {
		return nil, err
	}
	descriptor := protoutil.ProtoFromFileDescriptor(files[0])
	if imports := descriptor.GetDependency(); len(imports) > 0 {
		return nil, fmt.Errorf("it imports %v: imports are not supported", imports)
	}
	return descriptor, nil
}
