package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Read returns the image that a Dockerfile's target is, a stage that is FROM scratch;
// args are the build's. What the stage copies from another one's working directory is
// read from the directory of the Dockerfile, where it has to be built already, and
// anything else from its place on this machine.
func Read(dockerfile, target string, args map[string]string) (Image, error) {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		return Image{}, fmt.Errorf("cannot read what the image consists of: %w", err)
	}
	s := stages{root: filepath.Dir(dockerfile), target: target, args: args, workDirs: map[string]string{}}
	for _, i := range instructions(string(text)) {
		if err := s.follow(i); err != nil {
			return Image{}, fmt.Errorf("%s: line %d: %s: %w", dockerfile, i.line, i.name, err)
		}
	}
	switch {
	case !s.found:
		return Image{}, fmt.Errorf("%s has no stage %q", dockerfile, target)
	case len(s.image.Entrypoint) == 0:
		return Image{}, fmt.Errorf("%s: the stage %q has no ENTRYPOINT", dockerfile, target)
	}
	return s.image, nil
}

type instruction struct {
	line       int
	name, rest string
}

// instructions splits a Dockerfile into its instructions, without comments and with
// their lines joined.
func instructions(text string) (all []instruction) {
	var open bool // the last instruction goes on
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		line, more := strings.CutSuffix(line, `\`)
		if open {
			all[len(all)-1].rest += " " + strings.TrimSpace(line)
		} else {
			name, rest, _ := strings.Cut(line, " ")
			all = append(all, instruction{n + 1, strings.ToUpper(name), strings.TrimSpace(rest)})
		}
		open = more
	}
	return all
}

// stages follows a Dockerfile from stage to stage.
type stages struct {
	root, target string
	args         map[string]string

	workDirs map[string]string // each stage's
	stage    string            // where we are
	found    bool              // the target, once
	image    Image             // the target's
	set      map[string]string // the target's variables
}

func (s *stages) follow(i instruction) error {
	if i.name == "FROM" {
		return s.from(strings.Fields(i.rest))
	}
	if s.stage != s.target {
		if i.name == "WORKDIR" {
			s.workDirs[s.stage] = i.rest
		}
		return nil // theirs is to build what is built here already
	}
	switch i.name {
	case "ARG":
		return s.arg(i.rest)
	case "ENV":
		pairs, err := s.pairs(i.rest)
		for _, p := range pairs {
			s.image.Env = append(s.image.Env, p.name+"="+p.value)
		}
		return err
	case "LABEL":
		pairs, err := s.pairs(i.rest)
		for _, p := range pairs {
			s.image.Labels[p.name] = p.value
		}
		return err
	case "COPY":
		return s.copy(strings.Fields(i.rest))
	case "ENTRYPOINT":
		if err := json.Unmarshal([]byte(i.rest), &s.image.Entrypoint); err != nil {
			return fmt.Errorf("not a JSON array of strings, the only form that needs no shell: %w", err)
		}
		return nil
	}
	return errors.New("not understood here, and so left out of the images that are made without a builder")
}

func (s *stages) from(words []string) error {
	if len(words) != 3 || !strings.EqualFold(words[1], "AS") {
		return errors.New("not of the form FROM image AS name")
	}
	s.stage = words[2]
	if s.stage != s.target {
		return nil
	}
	if words[0] != "scratch" {
		return fmt.Errorf("the stage %s is from %s, and only those that are from scratch can be made here", s.stage, words[0])
	}
	s.found, s.image, s.set = true, Image{Labels: map[string]string{}, Files: map[string]File{}}, map[string]string{}
	return nil
}

func (s *stages) arg(text string) error {
	name, _, hasDefault := strings.Cut(text, "=")
	if given, ok := s.args[name]; ok {
		s.set[name] = given
		return nil
	}
	if !hasDefault {
		return fmt.Errorf("%s has no value", name)
	}
	pairs, err := s.pairs(text)
	for _, p := range pairs {
		s.set[p.name] = p.value
	}
	return err
}

type pair struct{ name, value string }

var pairForm = regexp.MustCompile(`^([\w.-]+)=("(?:[^"\\]|\\["\\])*"|[^\s"'\\]*)(?:\s+|$)`)

var unquote = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// pairs reads name=value name="value" ...
func (s *stages) pairs(text string) (all []pair, err error) {
	for text != "" {
		match := pairForm.FindStringSubmatch(text)
		if match == nil {
			return nil, fmt.Errorf("not of the form name=value or name=\"value\": %s", text)
		}
		value := match[2]
		if strings.HasPrefix(value, `"`) {
			value = unquote.Replace(value[1 : len(value)-1])
		}
		if value, err = s.expand(value); err != nil {
			return nil, err
		}
		all = append(all, pair{match[1], value})
		text = text[len(match[0]):]
	}
	return all, nil
}

func (s *stages) expand(text string) (string, error) {
	var err error
	text = os.Expand(text, func(name string) string {
		value, ok := s.set[name]
		if !ok {
			err = fmt.Errorf("the variable %s is not set: no ARG of this stage names it", name)
		}
		return value
	})
	return text, err
}

var modeForm = regexp.MustCompile(`^--chmod=(0[0-7]{3})$`)

// copy takes one file. Its mode has to be said: what it is on disk depends on who built
// it.
func (s *stages) copy(words []string) error {
	if len(words) != 4 {
		return errors.New("not of the form COPY --from=stage --chmod=0755 source target")
	}
	stage, isFrom := strings.CutPrefix(words[0], "--from=")
	mode := modeForm.FindStringSubmatch(words[1])
	source, target := words[2], words[3]
	if !isFrom || mode == nil || !path.IsAbs(source) || !path.IsAbs(target) || strings.HasSuffix(target, "/") {
		return errors.New("not of the form COPY --from=stage --chmod=0755 /source /target")
	}
	bits, err := strconv.ParseUint(mode[1], 8, 12)
	if err != nil {
		return err
	}
	workDir, ok := s.workDirs[stage]
	if !ok {
		return fmt.Errorf("no stage %s with a WORKDIR stands before this one", stage)
	}
	if inside, ok := strings.CutPrefix(source, workDir+"/"); ok {
		source = filepath.Join(s.root, inside)
	}
	s.image.Files[target] = File{Source: source, Mode: fs.FileMode(bits)}
	return nil
}
